"""What the table of operators says is so: tests that are made from it, for every operator of the default domain."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from daceopt.errors import ModelFileError, Unsupported
from daceopt.ops.core.operator_table import Coverage, coverage, markdown
from tests.onnx_suite import gradients, misused, retyped
from tests.onnx_suite.cases import share_of
from tests.onnx_suite.runner import Worker

DOCUMENT = Path(__file__).parents[2] / "docs" / "operators.md"
_REFUSALS = ("ModelFileError", "Unsupported", "NotKnownYet", "DaceoptError")


def few_of(shares: int) -> Any:
    """The first share; the others are tests of the long half."""
    return pytest.mark.parametrize("share", [0, *(pytest.param(k, marks=pytest.mark.onnx) for k in range(1, shares))])


@cache
def table() -> dict[str, Coverage]:
    return {row.op_type: row for row in coverage() if not row.domain}


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    made = Worker()
    yield made
    made.close()


def complaints(results: list[str]) -> str:
    return "\n".join([f"{len(results)} results:", *(r[:400] for r in results)])


def test_the_document_holds_the_table() -> None:
    written = DOCUMENT.read_text(encoding="utf-8")
    assert written == markdown(coverage()), "run `python -m daceopt operators --markdown > docs/operators.md`"


# -------------------------------------------------------------------- element types

TYPE_SHARES = 64


@few_of(TYPE_SHARES)
def test_types(worker: Worker, share: int) -> None:
    """What the table lists compiles and agrees with ONNX Runtime; what it does not is refused with the reason."""
    owners = {n: op for op in table() for n in retyped.names(op) if share_of(n, TYPE_SHARES) == share}
    results = worker.run_all(list(owners), "native")
    wrong = [_about_type(table()[owners[name]], name, reason) for name, reason in results.items()]
    assert not any(wrong), complaints([w for w in wrong if w])


def _about_type(row: Coverage, name: str, reason: str) -> str:
    kind = name.rpartition("/")[2]
    if reason.startswith("ModelFileError"):
        return ""  # the model is one that the standard itself refuses
    if not reason or "the declared output shape" in reason:  # how long the result is depends on the data
        return "" if kind in row.types else f"{name} compiles, but the table does not say so"
    if not reason.startswith("Unsupported"):
        return f"{name}: {reason}"
    if kind in row.types:
        return f"{name} is in the table, but: {reason}"
    return "" if row.op_type in reason and kind in reason else f"{name}: the reason says too little: {reason}"


# -------------------------------------------------------------------- gradients

GRADIENT_SHARES = 4


@pytest.mark.parametrize("models", [1, pytest.param(4, marks=pytest.mark.onnx)])
@few_of(GRADIENT_SHARES)
def test_gradients(share: int, models: int) -> None:
    """Where the table says that there is one it agrees with central differences; elsewhere there is none."""
    chosen = [row for op, row in table().items() if share_of(op, GRADIENT_SHARES) == share]
    wrong = [w for row in chosen for w in _about_gradient(row, models)]
    assert not wrong, complaints(wrong)


_OF_ONE_TYPE = {"BitCast"}  # from one type to the same one it is the identity, which has the gradient of that


def _about_gradient(row: Coverage, models: int) -> list[str]:
    counts, refusals = [], []
    for base in gradients.models(row.op_type)[:models]:
        try:
            counts.append(gradients.check(base))
        except (Unsupported, ModelFileError) as error:
            refusals.append(f"{base.name}: {error}")
        except Exception as error:  # of any kind: it is one result of many
            return [f"{base.name}: {type(error).__name__}: {error}"]
    if row.gradient and refusals and not counts:
        return [f"{row.op_type} has a gradient in the table, but {refusals[0]}"]
    if not row.gradient and any(counts) and row.op_type not in _OF_ONE_TYPE:
        return [f"{row.op_type} has no gradient in the table, but one was found"]
    return [f"the reason does not name the operator: {r}" for r in refusals if row.op_type.lower() not in r.lower()]


# -------------------------------------------------------------------- attributes

ATTRIBUTE_SHARES = 80


@few_of(ATTRIBUTE_SHARES)
def test_attributes_that_make_little_sense(worker: Worker, share: int) -> None:
    """They are refused, with the operator's name, or mean what they mean to ONNX Runtime."""
    owners = {n: op for op in table() for n in misused.names(op) if share_of(n, ATTRIBUTE_SHARES) == share}
    results = worker.run_all(list(owners), "native")
    wrong = [
        f"{name} {misused.Misused(name).change}: {reason}"
        for name, reason in results.items()
        if reason and not reason.startswith("RunIndexError") and not _refuses(reason, owners[name])
    ]
    assert not wrong, complaints(wrong)


def _refuses(reason: str, op_type: str) -> bool:
    """With the operator's name, or that of the model's own declaration which cannot be."""
    return reason.startswith(_REFUSALS) and (op_type in reason or "declares a negative extent" in reason)

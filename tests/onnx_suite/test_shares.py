"""Parts of ONNX's backend suite, operator by operator, also by the recipe that users have and by ``gpu``, whose kernels
run in the emulation; and the list of exclusions itself."""

from __future__ import annotations

import pytest

from tests.onnx_suite.__main__ import GOAL
from tests.onnx_suite.exclusions import excluded
from tests.onnx_suite.runner import Worker
from tests.onnx_suite.shares import EMULATED, FIRST, SECOND, check_natively, check_with_fallback, names

# torch's attention rounds elsewhere than the reference, by two units in the last place of float16
ROUNDED = ("test_attention_4d_fp16", "test_attention_4d_causal_fp16")


def test_the_exclusions_exist_and_leave_enough(worker: Worker) -> None:
    assert not sorted(set(excluded()) - set(worker.cases)), "excluded tests that the suite does not have"
    numeric = [name for name, (kind, is_numeric) in worker.cases.items() if kind == "node" and is_numeric]
    share = sum(name not in excluded() for name in numeric) / len(numeric)
    assert share >= GOAL, f"{share:.2%} of {len(numeric)} node tests over numbers are not excluded"


@pytest.mark.parametrize("share", FIRST)
def test_natively(worker: Worker, share: int) -> None:
    check_natively(worker, share)


@pytest.mark.parametrize("share", SECOND)
def test_natively_by_the_recipe_of_users(worker: Worker, share: int) -> None:
    check_natively(worker, share, "cpu")


def test_with_fallback(worker: Worker) -> None:
    check_with_fallback(worker, (*FIRST, *SECOND))


@pytest.mark.parametrize("share", EMULATED)
def test_emulated(worker: Worker, share: int) -> None:
    """Nothing is wrong; what a device does not do is refused, and that is little."""
    wanted = [name for name in names(worker, share) if name not in (*excluded(), *ROUNDED)]
    found = worker.run(wanted, "emulated", "gpu")
    wrong = [f"{name}: {reason[:400]}" for name, reason in found.items() if reason and "Unsupported" not in reason]
    assert not wrong, "\n".join(wrong)
    assert sum(map(bool, found.values())) <= len(found) / 8

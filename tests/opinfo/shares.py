"""The part of the database that every run of pytest compiles: a sample of every thirtieth entry, in one type."""

from __future__ import annotations

from functools import cache

from tests.onnx_suite.runner import Worker
from tests.opinfo import states
from tests.opinfo.entries import DTYPES, cases, entries
from tests.opinfo.exclusions import surprises

SHARES = 30
PARTS = 2  # a batch each, about
SAMPLES = 1
PREFERRED = ("float32", "int64", "bool")


def check(worker: Worker, part: int) -> None:
    """Every case is as in eager PyTorch, or fails as ``excluded.txt`` says; ATen runs what is recorded and no more."""
    results = worker.run_all(names()[part::PARTS], "build")
    wrong = [*surprises(results), *states.unrecorded(results, states.kept_states())]
    assert not wrong, "\n".join(
        [f"{len(wrong)} results differ from excluded.txt or states.json:", *(w[:400] for w in wrong)]
    )


@cache
def names() -> list[str]:
    """The cases of every thirtieth entry, in the first of the preferred types that it takes."""
    chosen = sorted(entries())[::SHARES]
    return [str(case) for name in chosen for case in cases(name, _dtype(name), SAMPLES)]


def _dtype(name: str) -> str:
    return next((d for d in PREFERRED if entries()[name].takes(DTYPES[d])), PREFERRED[0])

"""The suite in shares that pytest runs: a few by default, all of it where DACEOPT_ONNX_SUITE says ``all``.

A test's share follows from its name. Recipes have shares of their own.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from tests.onnx_suite import runner
from tests.onnx_suite.cases import share_of
from tests.onnx_suite.exclusions import excluded, surprises

SHARES = 64
_CHOSEN = SHARES if os.environ.get("DACEOPT_ONNX_SUITE") == "all" else SHARES // 32
FIRST = range(0, _CHOSEN, 2)
SECOND = range(1, _CHOSEN, 2)
EMULATED = range(0, SHARES, 8) if _CHOSEN == SHARES else (32,)


def names(worker: runner.Worker, *shares: int) -> list[str]:
    """The tests of these shares."""
    return [name for name in worker.cases if share_of(name, SHARES) in shares]


def check_natively(worker: runner.Worker, share: int, recipe: str = "none") -> None:
    """Every test of the share passes without a fallback, or fails as ``excluded.txt`` says."""
    wrong = surprises(worker.run(names(worker, share), "native", recipe))
    assert not wrong, "\n".join([f"{len(wrong)} results differ from excluded.txt:", *(w[:400] for w in wrong)])


def check_with_fallback(worker: runner.Worker, shares: Sequence[int]) -> None:
    """What does not pass natively passes with a fallback, if ONNX Runtime passes it."""
    results = worker.run([name for name in names(worker, *shares) if name in excluded()], "fallback")
    failed = [name for name, reason in results.items() if reason]
    theirs = worker.run(failed, "onnxruntime")
    worse = [f"{name}: {results[name][:400]}" for name, reason in theirs.items() if not reason]
    assert not worse, "\n".join(["ONNX Runtime passes these:", *worse])

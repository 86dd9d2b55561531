"""Compile times in new processes, cold and warm from the cache: BERT's training pair, and the fifteen networks."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.contenders import COMPILED
from benchmarks.harness import OURS, Budget, Result, at_least, at_most, case
from benchmarks.models.suite import SUITE
from benchmarks.worker import finish, start

_WARM_BOUND = 3.0  # seconds
_COLD = 2.0  # times as fast as torch.compile
_CONTENDERS = (COMPILED, OURS)


@case
def compile_time(budget: Budget) -> Iterator[Result]:
    """Seconds from importing the compiler to the end of BERT's first training step."""
    cold: dict[str, list[float]] = {who: [] for who in _CONTENDERS}
    warm: dict[str, list[float]] = {who: [] for who in _CONTENDERS}
    for _ in range(budget.repeats):
        with tempfile.TemporaryDirectory() as folder:
            for samples in (cold, warm):  # the first run fills the caches that the second one finds
                for who in _CONTENDERS:
                    samples[who].append(finish(start(who, "bert", Path(folder)))["seconds"])
    yield _result("cold, BERT training", cold, at_least(_medians(cold), 1.0, COMPILED))
    goal = at_most(_medians(warm)[OURS], _WARM_BOUND, f"under {_WARM_BOUND:g} s")
    yield _result("warm, BERT training", warm, goal)


@case
def compile_networks(budget: Budget) -> Iterator[Result]:
    """Seconds from importing the compiler to the end of the first training step, with empty caches; then again."""
    for name in filter(budget.wants, SUITE):
        with tempfile.TemporaryDirectory() as folder:
            cold, warm = (
                {who: finish(start(who, f"suite/{name}", Path(folder)))["seconds"] for who in _CONTENDERS}
                for _ in range(2)
            )
        goal = at_least(cold, _COLD, COMPILED)
        yield Result("compile-networks", f"{name}, cold", "s", cold, *goal)
        yield Result("compile-networks", f"{name}, warm", "s", warm)


def _medians(samples: dict[str, list[float]]) -> dict[str, float]:
    return {who: statistics.median(values) for who, values in samples.items()}


def _result(measure: str, samples: dict[str, list[float]], goal: tuple[str, bool]) -> Result:
    return Result("compile-time", measure, "s", _medians(samples), *goal)

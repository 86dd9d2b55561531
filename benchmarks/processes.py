"""Eight processes that compile one model at once in one cache folder; one is killed halfway."""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.harness import OURS, Budget, Result, case
from benchmarks.worker import finish, start

_PROCESSES = 8
_MODEL = "novel"
_LARGEST_ERROR = 1e-5


@case
def shared_cache(budget: Budget) -> Iterator[Result]:
    """All but the killed process succeed with right gradients; seconds are those of the slowest."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        finish(start(OURS, _MODEL, Path(folder)))
        alone = time.perf_counter() - began
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        victim, *others = (start(OURS, _MODEL, Path(folder)) for _ in range(_PROCESSES))
        _kill_while_compiling(victim, Path(folder), deadline=began + 10 * alone)
        errors = [_error(process) for process in others]
        seconds = time.perf_counter() - began
    right = sum(error is not None and error < _LARGEST_ERROR for error in errors)
    values = {"one process": alone, f"{_PROCESSES} processes": seconds}
    goal = f"all {len(others)} that live succeed, every result right"
    yield Result("shared-cache", _MODEL, "s", values, goal, right == len(others), {"right": right})


def _kill_while_compiling(process: subprocess.Popen[str], cache: Path, deadline: float) -> None:
    """End ``process`` as soon as anything is in the cache folder: somebody is building."""
    while process.poll() is None and time.perf_counter() < deadline and not any(cache.rglob("*")):
        time.sleep(0.02)
    process.kill()
    process.communicate()


def _error(process: subprocess.Popen[str]) -> float | None:
    try:
        return float(finish(process)["error"])
    except RuntimeError:
        return None

"""Peak memory of the fifteen networks: bytes of large blocks alive at once, beside eager PyTorch's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from benchmarks.contenders import EAGER
from benchmarks.harness import OURS, Budget, Result, at_most, case
from benchmarks.models.suite import SUITE

_ROOT = Path(__file__).resolve().parents[1]


@case
def peak_memory(budget: Budget) -> Iterator[Result]:
    """Megabytes beside model and inputs while a call runs that is not the first, in inference and training."""
    for name in filter(budget.wants, SUITE):
        for training in (False, True):
            values = {who: _peak(who, name, training) for who in (EAGER, OURS)}
            goal = at_most(values[OURS], values[EAGER], "at most eager's")
            yield Result("peak-memory", f"{name}, {'training' if training else 'inference'}", "MB", values, *goal)


def _peak(who: str, name: str, training: bool) -> float:
    environment = {**os.environ, "LD_PRELOAD": str(_counter())}
    command = [sys.executable, "-m", "benchmarks.memory_worker", who, name, str(int(training))]
    process = subprocess.run(command, cwd=_ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return float(json.loads(process.stdout.splitlines()[-1])["bytes"]) / 1e6


@cache
def _counter() -> Path:
    """The library that counts, compiled for this process."""
    folder = tempfile.mkdtemp(prefix="daceopt-bench-")
    library = Path(folder) / "counting.so"
    source = Path(__file__).with_name("counting_allocator.c")
    subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    return library

"""Seconds of a program's step: eager PyTorch, torch.compile and ours in turns, each after its first step."""

from __future__ import annotations

import resource
import statistics
import time
from typing import Any

from benchmarks.contenders import COMPILED, EAGER
from benchmarks.harness import OURS
from benchmarks.world.capturing import first_line
from benchmarks.world.catalogue import Row
from benchmarks.world.program import Program, prepared, stepped
from benchmarks.world.rightness import built, compare, inductor, ours
from daceopt.cost.measure import sample

CONTENDERS = {EAGER: lambda network: network, COMPILED: inductor, OURS: ours}


def measure(row: Row, training: bool, seconds: float) -> dict[str, Any]:
    """``medians`` in seconds of interleaved steps; ``first`` steps in seconds, and in ``first processor seconds`` of
    this process and of those that it waited for; who cannot take part (``absent``)."""
    program = built(row)
    program.networks.train(training)
    calls, first, spent, absent = {}, {}, {}, {}
    for who, prepare in CONTENDERS.items():
        begin, before = time.perf_counter(), _processor_seconds()
        try:
            networks = prepared(program.networks, prepare).train(training)
            stepped(program, networks, training)
            first[who], spent[who] = time.perf_counter() - begin, _processor_seconds() - before
            stepped(program, networks, training)  # some that take one step take no second one
        except Exception as error:
            absent[who] = first_line(error)
            continue
        calls[who] = _call(program, networks, training)
    samples = sample(calls, seconds=seconds)
    medians = {who: statistics.median(values) for who, values in samples.items()}
    return {"medians": medians, "first": first, "first processor seconds": spent, "absent": absent}


def _processor_seconds() -> float:
    used = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def peer(row: Row, training: bool) -> dict[str, Any]:
    """Whether torch.compile is right, as :func:`compare` says."""
    return compare(row, training, inductor)


def _call(program: Program, networks: Any, training: bool) -> Any:
    return lambda: stepped(program, networks, training)

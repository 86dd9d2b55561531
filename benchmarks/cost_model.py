"""How far the cost model is from what the generated kernels of the fifteen networks take, in forward and backward."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from benchmarks.contenders import Inputs, forward, step
from benchmarks.harness import OURS, Budget, Result, case
from benchmarks.models.suite import SUITE
from daceopt import optimized_module
from daceopt.cost.kernel_class import WITHIN, ModelError, keep, kernel_class
from daceopt.cost.kernel_time import KernelTimes
from daceopt.explore.report.model_error import SHORT
from daceopt.ir.kernel.kernel_node import KernelNode
from daceopt.runtime.executable import Executable, TimedExecutable

_LEAST_CALLS, _MOST_CALLS = 7, 40


class _Timed(TimedExecutable):
    """An executable that keeps what its kernels take."""

    def __init__(self, executable: Executable) -> None:
        super().__init__(executable)
        self.rows: list[dict[str, float]] = []

    def run(self, *call: Any) -> None:
        super().run(*call)
        self.rows.append(self.by_array())

    def shortest(self) -> dict[str, float]:
        """Array -> the seconds of the kernel that writes it."""
        return {array: min(row[array] for row in self.rows) for array in self.rows[0]}


@case
def cost_model(budget: Budget) -> Iterator[Result]:
    """Factors between modelled and measured seconds of kernels: by network, then by class; the machine's store keeps
    them, and ``python -m daceopt doctor`` shows them."""
    every: dict[str, list[tuple[float, float]]] = {}
    for name in filter(budget.wants, SUITE):
        own: list[tuple[float, float]] = []
        for training in (False, True):
            torch.manual_seed(0)
            model, inputs = SUITE[name]()
            for kind, *pair in kernels(model.train(training), inputs, training, budget.seconds):
                own.append((pair[0], pair[1]))
                every.setdefault(kind, []).append(own[-1])
        yield _result(name, ModelError.of(own))
        gc.collect()
    errors = {kind: ModelError.of(pairs) for kind, pairs in every.items()}
    errors["all"] = ModelError.of([pair for pairs in every.values() for pair in pairs])
    if not budget.rows:
        keep(errors)
    for kind, error in errors.items():
        yield _result(kind, error)


def _result(name: str, error: ModelError) -> Result:
    values = {OURS: error.factor, "weighted by time": error.factor_by_time}
    notes = {"kernels": error.count, f"within {WITHIN}": error.share, "by time": error.share_by_time}
    return Result("cost model", name, "x", values, f"{WITHIN}x", error.factor <= WITHIN, notes)


def kernels(model: nn.Module, inputs: Inputs, training: bool, seconds: float) -> Iterator[tuple[str, float, float]]:
    """(class, modelled seconds, measured seconds) of each generated kernel of a call; the shortest of several calls."""
    ours = optimized_module(model, fallback="raise")
    call = step(ours, inputs) if training else forward(ours, inputs)
    call()
    timed = list(_watch(ours))
    deadline, calls = time.perf_counter() + seconds, 0
    while calls < _LEAST_CALLS or (calls < _MOST_CALLS and time.perf_counter() < deadline):
        call()
        calls += 1
    for piece, at, watched in timed:
        if not watched.rows:
            continue
        graph, measured = piece.pair.graphs.directions()[at][0], watched.shortest()
        times = KernelTimes(graph)
        for node in (n for n in graph.nodes() if isinstance(n, KernelNode)):
            spent = next((measured[a] for a in graph.outputs_of(node) if a in measured), 0.0)
            if spent >= SHORT:
                kind = kernel_class(times.loops(node), times.work(node).threads)
                yield kind, times.seconds(node), spent


def _watch(ours: nn.Module) -> Iterator[tuple[Any, int, _Timed]]:
    """(piece, 0 for its forward and 1 for its backward program, what watches it)."""
    for piece in ours.forward.dispatcher.graphs:
        for at, entry in enumerate((piece.program.forward, piece.program.backward)):
            for placed in () if entry is None else entry.places():
                placed.executable = _Timed(placed.executable)
                yield piece, at, placed.executable

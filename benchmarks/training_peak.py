"""Peak memory of training, planned: the fifteen networks as one program and as modules, beside what eager PyTorch
allocates. Nothing is compiled or timed."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from benchmarks.harness import OURS, Budget, Result, at_most, case
from benchmarks.models.suite import SUITE
from daceopt import optimized_module, pipeline, training_step
from daceopt.codegen.working_memory import plan_memory
from daceopt.ir.control.program import Kind, Program
from daceopt.ir.graph.graph import Graph

EAGER = "eager"


@case
def training_peak(budget: Budget) -> Iterator[Result]:
    """Megabytes beside parameters and inputs while forward, loss and backward run; a module's without its loss."""
    for name in filter(budget.wants, SUITE):
        torch.manual_seed(0)
        model, inputs = SUITE[name]()
        theirs = eager_peak(model.train(), inputs)
        for kind in ("step", "module"):
            program = derive(copy.deepcopy(model).train(), inputs, one_program=kind == "step")
            values = {EAGER: theirs / 1e6, OURS: program_peak(program) / 1e6}
            goal = at_most(values[OURS], values[EAGER], "at most eager's")
            yield Result("training-peak", f"{name}, {kind}", "MB", values, *goal)


def _loss(result: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return (result * scale).sum()


def eager_peak(model: nn.Module, inputs: tuple[torch.Tensor, ...]) -> int:
    """Bytes alive at once as PyTorch's allocator counts them, gradients among them."""

    def step() -> None:
        model.zero_grad()
        _loss(model(*inputs), torch.tensor(0.01)).backward()

    step()
    model.zero_grad()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        step()
    events = [e for e in profiled.profiler.kineto_results.events() if e.name() == "[memory]"]
    alive = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        alive += event.nbytes()
        peak = max(peak, alive)
    return peak


class _Derived(BaseException):
    """There is a program, which nobody needs to compile."""

    def __init__(self, program: Program) -> None:
        self.program = program


def derive(model: nn.Module, inputs: tuple[torch.Tensor, ...], one_program: bool) -> Program:
    """What the recipe ``cpu`` makes of a training step, or of a module and its backward."""

    def stop(fingerprint: str, load: Any, **options: Any) -> Any:
        raise _Derived(pipeline.source_of(load, options["recipe"]).derive().program)

    torch._dynamo.reset()
    options: dict[str, Any] = {"recipe": "cpu", "fallback": "raise", "dynamic": False}
    with mock.patch.object(pipeline, "compile_graph", stop):
        try:
            if one_program:
                optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
                training_step(model, _loss, optimizer, **options)(*inputs, torch.tensor(0.01))
            else:
                optimized_module(model, **options)(*inputs)
        except _Derived as stopped_at:
            return stopped_at.program
    raise AssertionError("no program was derived")


def program_peak(program: Program) -> int:
    """Bytes of the saved block, the larger arena, results, and gradients in both directions."""
    peak = plan_memory(program).peak
    if program.backward is None:
        return peak
    received = [n for n, role in program.received.items() if role.kind == Kind.GRADIENT_OF_OUTPUT]
    forward = [n for k, n in enumerate(program.forward.outputs) if k not in program.forward.replaced]
    results = (program.forward, forward), (program.backward, program.backward.outputs), (program.backward, received)
    return peak + sum(_bytes(graph, name) for graph, names in results for name in dict.fromkeys(names))


def _bytes(graph: Graph, name: str) -> int:
    return 0 if name in graph.inputs and name in graph.outputs else int(graph.size(name)) * graph.dtype(name).bytes

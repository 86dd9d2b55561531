"""Random fused kernels, timed on this machine: what an estimator of kernels learns from (DisCo, section 5.2)."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import dace
import sympy
import torch

from daceopt.cost import limits
from daceopt.cost.rates import Rates
from daceopt.distributed.search.kernel_features import KernelFeatures, features_of
from daceopt.distributed.search.operator_costs import OperatorReach, operator_costs
from daceopt.ir.control.program import Program
from daceopt.ir.fusion import fusion_profit
from daceopt.ir.fusion.fusion_plan import FusionGroup, FusionPlan, emit
from daceopt.ir.graph.graph import Graph
from daceopt.ir.kernel.kernel import Kernel
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.scalar import scalar
from daceopt.ir.text.render import render
from daceopt.libs.kernel_times import kernel_times
from daceopt.passes.recipe import Recipe, as_step
from daceopt.passes.runner import Runner
from daceopt.programs.compiled import own_source
from daceopt.recipes.cpu import LOOPS
from daceopt.store.cache import key

_UNARY: tuple[Callable[[Any], Any], ...] = (
    sympy.tanh,
    scalar.sigmoid,
    sympy.erf,
    lambda x: x * x,
    lambda x: sympy.exp(-x * x),
    lambda x: scalar.maximum(x, 0),
    lambda x: sympy.sqrt(sympy.Abs(x) + 1),
    lambda x: 0.5 * x + 1,
)
_BINARY: tuple[Callable[[Any, Any], Any], ...] = (
    lambda x, y: x + y,
    lambda x, y: x * y,
    lambda x, y: x - y,
    lambda x, y: scalar.maximum(x, y),
    lambda x, y: x / (y * y + 1),
    lambda x, y: x * (1 - y * y),
)
_ELEMENTS = (10, 22)  # powers of two: of the arrays of a chain of operators
_RUNS = 25


@dataclass(frozen=True)
class KernelSample:
    """A kernel of several operators, and its ``seconds``: the shortest of some runs: what others do only adds
    time."""

    features: KernelFeatures
    seconds: float


def samples(seed: int, machine: Rates, chains: int = 24) -> list[KernelSample]:
    """Kernels of ``chains`` random chains of operators, compiled as one program for the cores of ``machine``.

    Raises BuildError.
    """
    graph = random_graph(seed, chains)
    with limits.assume(replace(limits.limits(), cores=machine.cores)):
        fused, groups = _fuse(graph, random.Random(seed))
    reach = OperatorReach(operator_costs(graph, machine))
    with threads(machine.cores):
        seconds = kernel_times(fused, _RUNS, key("kernel samples", own_source(), render(fused)))
    position = {name: k for k, cost in enumerate(reach.operators) for name in cost.writes}
    results = []
    for arrays in groups:
        spent = next((seconds[a] for a in arrays if a in seconds), None)
        if spent is not None and spent > 0:
            members = frozenset(position[a] for a in arrays)
            results.append(KernelSample(features_of(reach, members, members, machine), spent))
    return results


def random_graph(seed: int, chains: int) -> Graph:
    """Chains of element-wise operators, broadcasts and reductions of rows, each over arrays of its own size."""
    draw, graph = random.Random(seed), Graph(f"kernels_{seed}")
    for _ in range(chains):
        elements = 2.0 ** draw.uniform(*_ELEMENTS)
        columns = max(1, int(min(elements, 2.0 ** draw.uniform(3, 11))))
        _chain(graph, Builder(graph, "chain"), draw, (max(1, int(elements / columns)), columns))
    return graph


def _chain(graph: Graph, b: Builder, draw: random.Random, shape: tuple[int, int]) -> None:
    rows, columns = shape
    shapes = [shape, shape, (1, columns), (rows, 1)]
    values = [graph.add_input("x", s, dace.float32) for s in [shape, *draw.sample(shapes, draw.randint(0, 2))]]
    read: set[str] = set()
    for _ in range(draw.randint(2, 12)):
        kind = draw.random()
        x, y = draw.choice(values[-3:]), draw.choice(values)
        read |= {x}
        if kind < 0.4:
            values.append(b.elementwise(draw.choice(_UNARY), x))
        elif kind < 0.85:
            read |= {y}
            values.append(b.elementwise(draw.choice(_BINARY), x, y))
        else:
            wide = next(v for v in reversed(values) if graph.shape(v) == shape)
            read |= {wide}
            values.append(b.reduce(draw.choice(("sum", "max")), None, wide, axes=(1,), keepdims=True))
    written = [v for v in values if v not in graph.inputs]
    graph.outputs += [v for v in written if v not in read or v == written[-1]]


def _fuse(graph: Graph, draw: random.Random) -> tuple[Graph, list[list[str]]]:
    """A copy with random fusions, and the arrays that the operators of each kernel write."""
    fused = graph.copy()
    plan = FusionPlan(fused)
    for _ in range(3 * len(plan.nodes)):
        second = plan.group_of(draw.choice(plan.nodes))
        producers = plan.producers_of(second)
        if producers and draw.random() < 0.6:
            first = draw.choice(producers)
            if plan.why_not(first, second) is None:
                plan.attempt(first, second, lambda a, b, merged: _slower(fused, a, b, merged))
    groups = [[a for node in group.members for a in fused.outputs_of(node) if a is not None] for group in plan.groups()]
    for group in plan.fused_groups():
        assert group.kernel is not None
        emit(fused, group.members, group.kernel)
    fused.prune()
    program = Program.of(fused)
    steps = [as_step(step) for step in LOOPS]
    Runner(Recipe("kernel-samples", LOOPS)).apply(program, steps)
    return program.forward, groups


def _slower(graph: Graph, first: FusionGroup, second: FusionGroup, merged: Kernel) -> str | None:
    assert first.kernel is not None and second.kernel is not None
    return fusion_profit.why_slower(graph, first.kernel, second.kernel, merged)


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Parallel loops have so many threads: a second one that somebody else holds up would be measured, not the loop."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def stream(machine: Rates, first: int = 0) -> Iterator[list[KernelSample]]:
    """Program after program of samples."""
    while True:
        yield samples(first, machine)
        first += 1

"""What each operator of a graph costs before fusion, and what a kernel of several moves and computes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import sympy

from daceopt.cost.kernel_time import KernelTimes
from daceopt.cost.planned_kernel import kernel_seconds
from daceopt.cost.program_time import by_node
from daceopt.cost.rates import Rates
from daceopt.ir.fusion.micro_graph import type_of
from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node
from daceopt.ir.kernel.kernel import Kernel
from daceopt.ir.kernel.kernel_node import KernelNode
from daceopt.transformations.partition.cluster_extraction import is_eligible

FUNCTIONS = (
    "exp",
    "tanh",
    "sigmoid",
    "erf",
    "log",
    "Pow",
    "division",
    "maximum",
    "select",
    "load",
    "sum",
    "max",
    "min",
)
"""Functions and reductions that take long, or keep loops from running in vectors, in ways that a count of operations
does not tell."""


@dataclass(frozen=True)
class OperatorCost:
    """``kind``: its type (``micro_graph.TYPES``); ``seconds`` alone; ``reads`` and ``writes``: bytes by array, as
    nodes write it; ``inner``: the extent of its last loop; ``functions``: evaluations of each of
    ``FUNCTIONS``; ``kept``: of what it writes, the arrays that outlive the program."""

    kind: str
    seconds: float
    operations: float
    reads: Mapping[str, float]
    writes: Mapping[str, float]
    inner: float = 1.0
    functions: tuple[float, ...] = ()
    kept: frozenset[str] = frozenset()


@dataclass(frozen=True)
class GroupCost:
    """A kernel of several operators: bytes that it reads and writes once what passes between them stays inside."""

    read: float
    written: float
    operations: float

    def seconds(self, machine: Rates) -> float:
        """By its bytes and operations alone: the roofline that the estimator is compared with, and starts from."""
        return kernel_seconds(machine, self.read + self.written, self.operations)


def operator_costs(graph: Graph, machine: Rates, measured: Mapping[Node, float] | None = None) -> list[OperatorCost]:
    """Of the nodes of ``graph``, in their order. ``measured``: seconds of calls; others by their roofline."""
    times = KernelTimes(graph, None, machine)
    library = {**by_node(graph, None, machine, times), **(measured or {})}
    return [_cost(graph, node, times, library[node]) for node in graph.nodes()]


def _cost(graph: Graph, node: Node, times: KernelTimes, seconds: float) -> OperatorCost:
    written = [n for n in graph.outputs_of(node) if n is not None]
    writes = {n: _bytes(graph, n, times) for n in written}
    reads: dict[str, float] = {}
    for name in (n for n in graph.inputs_of(node) if n is not None):
        sources = graph.sources(name)
        for source in sources:
            reads[source] = max(reads.get(source, 0.0), _bytes(graph, name, times) / len(sources))
    kind, operations, inner, functions = "opaque", 0.0, 1.0, (0.0,) * len(FUNCTIONS)
    if is_eligible(node):
        kind = type_of(graph, node)
    if isinstance(node, KernelNode):
        work = times.work(node)
        gathered = max(0.0, work.bytes - sum(writes.values()))  # of a gather no more is read than is picked
        shrink = min(1.0, gathered / total) if (total := sum(reads.values())) else 1.0
        reads = {n: b * shrink for n, b in reads.items()}
        kernel = node.kernel
        functions = _evaluations(kernel, times)
        inner = max(times.number(kernel.most(stage.params[-1:])) for stage in kernel.stages)
        operations, seconds = work.operations, kernel_seconds(times.machine, work.bytes, work.operations)
    outputs = frozenset(n for n in written if graph.is_kept(n))
    return OperatorCost(kind, seconds, operations, reads, writes, inner, functions, outputs)


def _evaluations(kernel: Kernel, times: KernelTimes) -> tuple[float, ...]:
    """How often each of ``FUNCTIONS`` is evaluated by all iterations of a kernel."""
    counts = dict.fromkeys(FUNCTIONS, 0.0)
    for stage in kernel.stages:
        iterations = times.number(kernel.most(stage.params))
        for part in (p for a in stage.assignments for p in sympy.preorder_traversal(a.expr)):
            name = "division" if part.is_Pow and part.exp.is_negative else type(part).__name__
            if name in counts:
                counts[name] += iterations
        for reduction in (a.wcr for a in stage.writes.values() if a.wcr in counts):
            counts[str(reduction)] += iterations
    return tuple(counts.values())


def _bytes(graph: Graph, name: str, times: KernelTimes) -> float:
    extents = [n for n, s in zip(graph.shape(name), graph.strides(name)) if s != 0]
    size = float(graph.dtype(name).bytes)
    for extent in extents:
        size *= times.number(extent)
    return size


class OperatorReach:
    """Who reads what in a program of operators, for the costs of groups of them."""

    def __init__(self, operators: Sequence[OperatorCost]):
        self.operators = operators
        self.readers: dict[str, set[int]] = {}
        self.writer: dict[str, int] = {}
        for k, operator in enumerate(operators):
            for array in operator.reads:
                self.readers.setdefault(array, set()).add(k)
            self.writer.update(dict.fromkeys(operator.writes, k))

    def is_needed(self, array: str, members: Collection[int], exported: Collection[int]) -> bool:
        """Must a kernel of ``members`` leave ``array`` in memory, of which it exports the results of some?"""
        own = self.writer.get(array)
        if own is None or own not in exported:
            return False
        return array in self.operators[own].kept or not self.readers.get(array, set()) <= set(members)

    def leaving(self, members: Collection[int], exported: Collection[int]) -> dict[int, float]:
        """Bytes of each member's results that others read."""
        return {
            k: sum(b for a, b in self.operators[k].writes.items() if self.is_needed(a, members, exported))
            for k in members
        }

    def cost(self, members: Collection[int], exported: Collection[int]) -> GroupCost:
        """Of one kernel: what several members read counts once."""
        inside = {a for k in members for a in self.operators[k].writes}
        reads: dict[str, float] = {}
        for k in members:
            for array, nbytes in self.operators[k].reads.items():
                if array not in inside:
                    reads[array] = max(reads.get(array, 0.0), nbytes)
        written = sum(self.leaving(members, exported).values())
        return GroupCost(sum(reads.values()), written, sum(self.operators[k].operations for k in members))


def edges_among(operators: Sequence[OperatorCost], members: Iterable[int]) -> list[tuple[int, int]]:
    """(producer, reader) pairs of members."""
    ordered = sorted(members)
    writer = {a: k for k in ordered for a in operators[k].writes}
    pairs = dict.fromkeys((writer[a], k) for k in ordered for a in operators[k].reads if a in writer and writer[a] != k)
    return list(pairs)

"""How long a program takes as it is scheduled: its kernels by their model, its library calls by their roofline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from daceopt.cost.kernel_time import KernelTimes
from daceopt.cost.limits import limits
from daceopt.cost.movement import data_movement
from daceopt.cost.rates import Rates
from daceopt.cost.work import known_flops
from daceopt.ir.control.region import Region, iterations
from daceopt.ir.graph.kinds import Node
from daceopt.ir.graph.order import sources_of
from daceopt.ir.kernel.kernel_node import KernelNode

if TYPE_CHECKING:
    from daceopt.ir.control.program import Program
    from daceopt.ir.graph.graph import Graph


_LINE = 64  # bytes of a line of the caches


@dataclass(frozen=True)
class ProgramTime:
    """Modelled seconds of one run in all directions: ``total``, of it ``kernels``, and of these at most ``fusible``:
    what other kernels would not take that pass less to one another, and start threads less often. ``far``: what nodes
    would not take at most if what they pass to one another never left the caches. ``nodes``: how many take time."""

    total: float
    kernels: float
    fusible: float
    far: float = 0.0
    nodes: int = 0

    @classmethod
    def of(cls, program: Program) -> ProgramTime:
        parts = [_of_graph(graph) for graph in program.directions()]
        return cls(*map(sum, zip(*((p.total, p.kernels, p.fusible, p.far, p.nodes) for p in parts))))


def _of_graph(graph: Graph) -> ProgramTime:
    times = KernelTimes(graph)
    spent = by_node(graph, times=times)
    own = {node: s for node, s in spent.items() if isinstance(node, KernelNode)}
    starts = times.machine.region * max(0, sum(times.work(n).threads > 1 for n in own) - 1)
    fusible = _passing_time(graph, list(own), times) + starts
    return ProgramTime(sum(spent.values()), sum(own.values()), fusible, _far(graph, times), len(spent))


def _passing_time(graph: Graph, kernels: Sequence[Node], times: KernelTimes) -> float:
    """What one kernel writes and another reads that could be one with it: a call between them has to run between them.
    What somebody else reads as well is written in any case."""
    number, through = {node: k for k, node in enumerate(kernels)}, _through_calls(graph, kernels)
    seconds = 0.0
    for node in kernels:
        for name in (n for n in graph.outputs_of(node) if n is not None):
            users = graph.all_consumers(name)
            near = [r for r in users if r in number and not through[r] >> number[node] & 1]
            readers = [r for r in near if not _waits(graph, node, r, name)]
            moved = times.number(graph.size(name)) * graph.dtype(name).bytes * (len(readers) + (readers == users))
            seconds += times.machine.seconds(moved, 0, threads=times.machine.cores) if readers else 0.0
    return seconds


def _waits(graph: Graph, node: Node, reader: Node, name: str) -> bool:
    """Must ``name``, which kernel ``node`` writes, be read again because ``reader`` also needs what the kernel has
    reduced it to: from more of it than stays near a core?"""
    size, itemsize = graph.size(name), graph.dtype(name).bytes
    read = {graph.root(n)[0] for n in graph.inputs_of(reader) if n is not None}
    sums = [n for n in graph.outputs_of(node) if n is not None and n != name and n in read]
    if not sums or not isinstance(size, int):
        return False
    index = {a.array: a for a in node.kernel.writes()}
    if name not in index:
        return False
    rows = [axis for axis, stride in enumerate(graph.strides(name)) if stride == 1 and graph.shape(name)[axis] != 1]
    along = {s for axis in rows for s in getattr(index[name].index[axis], "free_symbols", ())}
    line = min(max((graph.shape(name)[axis] for axis in rows), default=1), _LINE // itemsize)
    for collected in (n for n in sums if n in index and isinstance(graph.size(n), int) and 0 < graph.size(n) < size):
        # neighbours in memory that go into different sums are walked by together
        beside = line if along & index[collected].params() else 1
        if size // graph.size(collected) * beside * itemsize > limits().nearby:
            return True
    return False


def _through_calls(graph: Graph, kernels: Sequence[Node]) -> dict[Node, int]:
    """Node -> the kernels (bits) on whose results it depends by way of a node that is no kernel."""
    bit = {node: 1 << k for k, node in enumerate(kernels)}
    before: dict[Node, int] = {}  # the kernels on which a node depends in any way
    through: dict[Node, int] = {}
    for node in graph.nodes():
        before[node] = through[node] = 0
        for _, source in sources_of(graph, node):
            before[node] |= before[source] | bit.get(source, 0)
            through[node] |= through[source] if source in bit else before[source]
    return through


def _far(graph: Graph, times: KernelTimes) -> float:
    """Of arrays that are known to be larger than the caches."""
    seconds = 0.0
    for node in graph.nodes():
        for name in (n for n in graph.outputs_of(node) if n is not None):
            size = graph.size(name)
            nbytes = size * graph.dtype(name).bytes if isinstance(size, int) else 0
            if nbytes > limits().together:
                seconds += times.machine.far(nbytes) * (len(graph.all_consumers(name)) + 1)
    return seconds


def by_node(
    graph: Graph,
    sizes: Mapping[str, int] | None = None,
    machine: Rates | None = None,
    times: KernelTimes | None = None,
) -> dict[Node, float]:
    """The seconds of each node, in their order; sizes that are not given count as ``dims.HINT``. A choice counts
    as its dearest branch."""
    times = times or KernelTimes(graph, sizes, machine)
    moved = data_movement(graph).nodes
    seconds_of = {}
    for node in graph.nodes():
        if isinstance(node, KernelNode):
            seconds_of[node] = times.seconds(node)
        elif isinstance(node, Region):
            inside = (sum(by_node(body, sizes, times.machine).values()) for body in node.bodies)
            seconds_of[node] = max(times.number(iterations(node)), 0) * max(inside)
        else:
            work = times.number(known_flops(graph, node))
            seconds_of[node] = times.machine.product_seconds(times.number(sum(moved[node])), work)
    return seconds_of

"""How long a program takes as it is scheduled: its kernels by their model, its library calls by their roofline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dace import nodes

from daceopt.cost.kernel_time import KernelTimes
from daceopt.cost.limits import limits
from daceopt.cost.movement import data_movement
from daceopt.cost.rates import Rates
from daceopt.cost.work import known_flops
from daceopt.ir.region import Region, iterations

if TYPE_CHECKING:
    from daceopt.ir.graph import Graph
    from daceopt.ir.program import Program


@dataclass(frozen=True)
class ProgramTime:
    """Modelled seconds of one run in all directions: ``total``, of it ``kernels``, and of these at most ``fusible``:
    what other kernels would not take that pass less to one another, and start threads less often. ``far``: what nodes
    would not take at most if what they pass to one another never left the caches."""

    total: float
    kernels: float
    fusible: float
    far: float = 0.0

    @classmethod
    def of(cls, program: Program) -> ProgramTime:
        parts = [_of_graph(graph) for graph in program.directions()]
        return cls(*map(sum, zip(*((p.total, p.kernels, p.fusible, p.far) for p in parts))))


def _of_graph(graph: Graph) -> ProgramTime:
    times = KernelTimes(graph)
    spent = by_node(graph, times=times)
    own = {node: s for node, s in spent.items() if isinstance(node, nodes.MapEntry)}
    passed = 0.0
    for node in own:
        for name in (n for n in graph.outputs_of(node) if n is not None):
            readers = [r for r in graph.all_consumers(name) if r in own]
            moved = times.number(graph.size(name)) * graph.dtype(name).bytes * (len(readers) + 1)
            passed += times.machine.seconds(moved, 0, threads=times.machine.cores) if readers else 0.0
    starts = times.machine.region * max(0, sum(times.work(n).threads > 1 for n in own) - 1)
    return ProgramTime(sum(spent.values()), sum(own.values()), passed + starts, _far(graph, times))


def _far(graph: Graph, times: KernelTimes) -> float:
    """Of arrays that are known to be larger than the caches."""
    found = 0.0
    for node in graph.nodes():
        for name in (n for n in graph.outputs_of(node) if n is not None):
            size = graph.size(name)
            nbytes = size * graph.dtype(name).bytes if isinstance(size, int) else 0
            if nbytes > limits().together:
                found += times.machine.far(nbytes) * (len(graph.all_consumers(name)) + 1)
    return found


def by_node(
    graph: Graph,
    sizes: Mapping[str, int] | None = None,
    machine: Rates | None = None,
    times: KernelTimes | None = None,
) -> dict[Any, float]:
    """The seconds of each node, in their order; sizes that are not given count as ``kernel_time.HINT``. A choice counts
    as its dearest branch."""
    times = times or KernelTimes(graph, sizes, machine)
    moved = data_movement(graph).nodes
    found = {}
    for node in graph.nodes():
        if isinstance(node, nodes.MapEntry):
            found[node] = times.seconds(node)
        elif isinstance(node, Region):
            inside = (sum(by_node(body, sizes, times.machine).values()) for body in node.bodies)
            found[node] = max(times.number(iterations(node)), 0) * max(inside)
        else:
            work = times.number(known_flops(graph, node))
            found[node] = times.machine.product_seconds(times.number(sum(moved[node])), work)
    return found

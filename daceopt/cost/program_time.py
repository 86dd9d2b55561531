"""How long a graph takes as it is scheduled: its kernels by their model, its library calls by their roofline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dace import nodes

from daceopt.cost.kernel_time import KernelTimes
from daceopt.cost.movement import data_movement
from daceopt.cost.rates import Rates, rates
from daceopt.cost.work import flops
from daceopt.errors import Unsupported
from daceopt.ir.region import Region, iterations

if TYPE_CHECKING:
    from daceopt.ir.graph import Graph


def modelled(graph: Graph, sizes: Mapping[str, int] | None = None, machine: Rates | None = None) -> float:
    """Seconds of one run; sizes that are not given count as ``kernel_time.HINT``."""
    return sum(by_node(graph, sizes, machine).values())


def by_node(graph: Graph, sizes: Mapping[str, int] | None = None, machine: Rates | None = None) -> dict[Any, float]:
    """The seconds of each node, in their order. A choice counts as its dearest branch."""
    times = KernelTimes(graph, sizes, machine or rates())
    moved = data_movement(graph).nodes
    found = {}
    for node in graph.nodes():
        if isinstance(node, nodes.MapEntry):
            found[node] = times.seconds(node)
        elif isinstance(node, Region):
            trips = times.number(iterations(node))
            found[node] = max(trips, 0) * max(modelled(body, sizes, times.machine) for body in node.bodies)
        else:
            work = times.number(_operations(graph, node))
            found[node] = times.machine.product_seconds(times.number(sum(moved[node])), work)
    return found


def _operations(graph: Graph, node: Any) -> Any:
    try:
        return flops(graph, node)
    except Unsupported:  # a call of the host: what it does is its own
        return 0

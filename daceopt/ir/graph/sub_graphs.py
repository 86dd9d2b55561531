"""Sub-graphs: which nodes of a graph are split together, along which axes, into how many instances.

The decision of GraphTurbo (Zhao et al., OSDI 2023, section 3), kept with the graph as order and schedules are: by the
arrays that nodes write. So it survives copies, fusions and replacements, and is data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from dace.sdfg.nodes import Node

from daceopt.ir.graph.dataflow_graph import DataflowGraph

HALOS = ("recomputed", "kept")
"""What neighbouring instances do about elements that both need: each computes them, or the first keeps them."""


@dataclass(frozen=True)
class SubGraph:
    """Nodes that are split together.

    ``axes``: each array that one of them writes -> the axis along which its elements are divided among instances.
    ``factor``: how many instances one cluster of the machine executes; ``clusters``: how many clusters share the axis,
    the first with the first elements. ``halos``: one of ``HALOS``. ``instances``: once it is split, the arrays that the
    nodes of each instance write, the instances in the order of their elements; they are the keys of ``axes`` then.
    """

    axes: Mapping[str, int]
    factor: int
    clusters: int = 1
    halos: str = HALOS[0]
    instances: tuple[tuple[str, ...], ...] = ()

    @property
    def count(self) -> int:
        """The number of instances on all clusters."""
        return self.factor * self.clusters

    @property
    def is_split(self) -> bool:
        """Are there nodes for each instance?"""
        return bool(self.instances)

    def nodes(self, graph: DataflowGraph) -> list[Node]:
        """Its nodes, in the order of ``axes``, which is topological where nothing was edited since."""
        return _writers(graph, self.axes)

    def instance_nodes(self, graph: DataflowGraph) -> list[list[Node]]:
        """The nodes of each instance; one list with all of them before the sub-graph is split."""
        return [_writers(graph, names) for names in self.instances or (tuple(self.axes),)]

    def within(self, graph: DataflowGraph) -> SubGraph:
        """The same without the arrays that ``graph`` no longer has."""
        if all(map(graph.has, self.axes)):
            return self
        instances = tuple(tuple(filter(graph.has, names)) for names in self.instances)
        return replace(self, axes={n: k for n, k in self.axes.items() if graph.has(n)}, instances=instances)


def check(graph: DataflowGraph, groups: Sequence[SubGraph]) -> None:
    """Raise ValueError unless each array is in one sub-graph at most, exists, and has the axis that is split."""
    members: set[str] = set()
    for group in groups:
        if group.factor < 1 or group.clusters < 1 or group.halos not in HALOS:
            counts = f"{group.factor} instances on {group.clusters} clusters, halos {group.halos}"
            raise ValueError(
                f"sub-graph: {counts}; expected 1 or more of each, and halos that are {' or '.join(HALOS)}"
            )
        if group.is_split and len(group.instances) != group.count:
            raise ValueError(f"sub-graph: {len(group.instances)} instances, expected {group.count}")
        if group.is_split and sorted(n for names in group.instances for n in names) != sorted(group.axes):
            raise ValueError("sub-graph: its instances do not write each of its arrays once")
        for name, axis in group.axes.items():
            if not graph.has(name) or graph.is_view(name) or name in members:
                raise ValueError(f"sub-graph: {name} is in two of them, a view, or no array of the graph")
            if not 0 <= axis < max(len(graph.shape(name)), 1):
                raise ValueError(f"sub-graph: {name} has no axis {axis}, its shape is {graph.shape(name)}")
            members.add(name)


def _writers(graph: DataflowGraph, names: Sequence[str] | Mapping[str, int]) -> list[Node]:
    writers = (graph.producer(name) for name in names if graph.has(name))
    return list(dict.fromkeys(node for node in writers if node is not None))

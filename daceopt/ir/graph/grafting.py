"""One graph inside of another: all that it computes, over arrays of the other in the place of its inputs."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping

from dace import nodes

from daceopt.ir.data.arrays import SEED
from daceopt.ir.data.provenance import label_of
from daceopt.ir.graph.graph import Graph
from daceopt.ir.kernel.kernel_node import KernelNode


def graft(graph: Graph, other: Graph, names_of: Mapping[str, str]) -> dict[str, str]:
    """Add the nodes of ``other``, which stays as it is, to ``graph``; returns array of ``other`` -> array of ``graph``.

    ``known``: the array of ``graph``, of the same shape, type and layout, that each input of ``other`` is. Sizes of
    both are the same; kernels have no schedules yet. ValueError for an input that is not given.
    """
    missing = [name for name in other.inputs if name not in names_of]
    if missing:
        raise ValueError(f"graph {other.name} also reads {missing}; expected an array for each input")
    names = _Names(graph, other, names_of)
    for name in other.arrays():
        names.of(name)
    for name in other.arrays():
        if other.is_part(name):
            whole, starts = other.part(name)
            graph.attach(names.of(name), names.of(whole), starts)
    for node in other.nodes():
        with graph.label_nodes(label_of(node), other.origins_of(node)):
            _add(graph, other, node, names)
    graph.assumptions += [a for a in other.assumptions if a not in graph.assumptions]
    return names.known


class _Names:
    """Arrays of ``graph`` for those of ``other``, added on their first use: views after their sources."""

    def __init__(self, graph: Graph, other: Graph, names: Mapping[str, str]):
        self._graph, self._other = graph, other
        self.known = dict(names)

    def of(self, name: str) -> str:
        if name not in self.known:
            with self._graph.label_nodes(origins=self._other.origins.get(name, ())):
                self.known[name] = self._copy(name)
        return self.known[name]

    def _copy(self, name: str) -> str:
        graph, other, hint = self._graph, self._other, re.sub(r"_\d+$", "", name)
        if name == SEED:
            return graph.seed()
        if name in other.constants:
            same = graph.constants.get(name) is other.constants[name]
            return name if same else graph.add_constant(hint, other.constants[name])
        if other.is_view(name):
            source = self.of(other.view_source(name))
            return graph.add_view(source, hint, other.shape(name), other.strides(name), other.view_offset(name))
        return graph.add_array(hint, other.shape(name), other.dtype(name), other.strides(name))


def _add(graph: Graph, other: Graph, node: nodes.Node, names: _Names) -> None:
    if isinstance(node, KernelNode):
        graph.add_kernel(node.kernel.over(names.known).rename_locals_apart(graph))
        return
    reads, writes = other.reads(node), other.writes(node)
    twin = copy.deepcopy(node)
    graph.add_node(twin, {c: names.of(n) for c, n in reads.items()}, {c: names.of(n) for c, n in writes.items()})

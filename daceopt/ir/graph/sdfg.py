"""Graphs as SDFGs of DaCe: one state, an access node for each array, memlets of whole arrays; kernels as library nodes,
or as map scopes around tasklets, for transformations of DaCe."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import dace
from dace import nodes, subsets
from dace.memlet import Memlet

from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node
from daceopt.ir.kernel.kernel_node import KernelNode
from daceopt.ir.kernel.map_scope import MapScope, whole_memlet
from daceopt.ir.scalar.dims import Dim


@dataclass(frozen=True)
class GraphSdfg:
    """A graph in DaCe's words. ``original``: node of the state, a map scope by its entry -> node of the graph."""

    sdfg: dace.SDFG
    state: dace.SDFGState
    original: dict[dace.sdfg.nodes.Node, Node]


def sdfg_of(graph: Graph) -> GraphSdfg:
    """``graph`` with its own nodes, kernels among them, as nodes of a state. Arrays that nothing touches have no access
    node: DaCe refuses those without edges."""
    return _Writer(graph).write(lambda writer, node: writer.add_node(node, node))


def expand(graph: Graph) -> GraphSdfg:
    """``graph`` with copies of its nodes, and a map scope in the place of each kernel."""
    return _Writer(graph).write(_Writer.add_copy)


class _Writer:
    """Builds the SDFG of ``graph``."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.sdfg = graph, dace.SDFG(graph.name)
        self.state = self.sdfg.add_state("main", is_start_block=True)
        # without it DaCe inspects the whole Python call stack for each access node: up to 60 ms
        self.state.set_default_lineinfo(dace.dtypes.DebugInfo(0))
        self._nodes: dict[str, nodes.AccessNode] = {}
        self._original: dict[dace.sdfg.nodes.Node, Node] = {}

    def write(self, add: Callable[[_Writer, Node], None]) -> GraphSdfg:
        """Add all arrays, and each node by ``add``."""
        for name in self.graph.size_names:
            self.sdfg.add_symbol(name, dace.int64)
        for name in self.graph.arrays():
            self._declare(name)
        for node in self.graph.compute():
            add(self, node)
        for name in self.graph.arrays():
            self._connect(name)
        return GraphSdfg(self.sdfg, self.state, self._original)

    def access(self, name: str) -> nodes.AccessNode:
        """The access node of the array ``name``."""
        if name not in self._nodes:
            self._nodes[name] = self.state.add_access(name)
        return self._nodes[name]

    def whole(self, name: str, wcr: str | None = None) -> Memlet:
        """All elements of an array."""
        return whole_memlet(name, self.sdfg.arrays[name], wcr)

    def add_node(self, node: Node, original: Node) -> None:
        """``node``, which reads and writes what ``original`` does in the graph."""
        self._original[node] = original
        self.state.add_node(node)
        for connector, name in self.graph.reads(original).items():
            self.state.add_edge(self.access(name), None, node, connector, self.whole(name))
        for connector, name in self.graph.writes(original).items():
            self.state.add_edge(node, connector, self.access(name), None, self.whole(name))

    def add_copy(self, node: Node) -> None:
        """A copy of ``node``, or its map scope."""
        if isinstance(node, KernelNode):
            self._original[MapScope(self.state, node.kernel, self.access).entry] = node
        else:
            self.add_node(copy.deepcopy(node), node)

    def _declare(self, name: str) -> None:
        graph = self.graph
        desc, add = graph.desc(name), self.sdfg.add_view if graph.is_view(name) else self.sdfg.add_array
        options = {} if graph.is_view(name) else {"transient": graph.is_transient(name)}
        strides = desc.strides or (1,)
        add(name, desc.shape or (1,), desc.dtype, strides=strides, total_size=desc.total_size, **options)

    def _connect(self, name: str) -> None:
        """The edge from an array to a view of it, or from a part to its whole."""
        graph = self.graph
        if graph.is_view(name):
            node, source = self.access(name), graph.view_source(name)
            node.add_in_connector("views")
            self.state.add_edge(self.access(source), None, node, "views", self.whole(source))
        if graph.is_part(name):
            whole, starts = graph.part(name)
            memlet = _copied_memlet(name, starts, graph.shape(name))
            self.state.add_edge(self.access(name), None, self.access(whole), None, memlet)


def _copied_memlet(name: str, starts: Iterable[Dim], extents: Iterable[Dim]) -> Memlet:
    """What DaCe says of a part: it is copied into its box. It is there already."""
    own, box = [], []
    for start, extent in zip(starts, extents, strict=True):
        own.append((0, extent - 1, 1))
        box.append((start, start + extent - 1, 1))
    return Memlet(data=name, subset=subsets.Range(own), other_subset=subsets.Range(box))

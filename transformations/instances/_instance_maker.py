"""Puts a node for each instance in the place of the nodes of a sub-graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node
from daceopt.ir.graph.sub_graphs import SubGraph
from daceopt.splits import Held, Piece, places, replace_node
from daceopt.transformations.instances._cuts import Cut, Span
from daceopt.transformations.instances._pieces import Pieces


class InstanceMaker:
    """Makes the nodes of each instance of one sub-graph, node by node in topological order."""

    def __init__(self, graph: Graph, group: SubGraph, pieces: Pieces, levels: Mapping[str, list[int]]):
        self._graph, self._group, self._pieces, self._levels = graph, group, pieces, levels
        self._axes: dict[str, int] = {}
        self._written: list[list[str]] = [[] for _ in range(group.count)]
        self._held: list[dict[str, Held]] = [{} for _ in range(group.count)]

    def split(self, node: Node, cut: Cut) -> None:
        """Put the pieces of ``node`` in its place."""
        spans = self._pieces.spans[node]

        def make() -> list[Piece]:
            outputs = {name: self._places(name, axis, spans) for name, axis in cut.division.axes.items()}
            for name, names in outputs.items():
                self._note(name, names, cut.division.axes[name], spans)
            return [
                Piece(start, end - start, {name: names[k] for name, names in outputs.items()}, self._held[k])
                for k, (start, end) in enumerate(spans)
            ]

        replace_node(self._graph, node, cut.division, make)

    def _places(self, name: str, axis: int, spans: Sequence[Span]) -> list[str]:
        """What each instance writes of ``name``: a part, or an array of its own that overlaps with its neighbours'."""
        graph = self._graph
        if name not in self._pieces.own:
            size, count = int(graph.shape(name)[axis]), len(spans)
            even = all(end == size * (k + 1) // count for k, (_, end) in enumerate(spans))
            within = self._levels.get(name, []) if even else []
            return places(graph, name, axis, [(start, end - start) for start, end in spans], within)
        return [self._own(name, axis, end - start) for start, end in spans]

    def _own(self, name: str, axis: int, extent: int) -> str:
        """An array like ``name``, its axes in the same order in memory, of ``extent`` elements along ``axis``."""
        graph = self._graph
        shape = [extent if k == axis else n for k, n in enumerate(graph.shape(name))]
        strides, step = [0] * len(shape), 1
        old = graph.strides(name)
        for k in sorted(range(len(shape)), key=lambda k: (old[k], k != axis, -k)):
            strides[k], step = step, step * int(shape[k])
        return graph.add_array(graph.source.names.get(name, name), shape, graph.dtype(name), strides)

    def _note(self, name: str, parts: Sequence[str], axis: int, spans: Sequence[Span]) -> None:
        for k, own in enumerate(parts):
            self._axes[own] = axis
            self._written[k].append(own)
            if name in self._pieces.own:
                self._held[k][name] = Held(own, axis, spans[k][0])

    def record(self) -> SubGraph:
        """The sub-graph with what its instances write."""
        instances = tuple(tuple(names) for names in self._written)
        return replace(self._group, axes=self._axes, instances=instances)

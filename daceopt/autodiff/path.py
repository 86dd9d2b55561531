"""The part of a graph between the inputs whose gradient is wanted and the outputs that have one."""

from __future__ import annotations

from collections.abc import Iterable

from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node
from daceopt.ir.scalar import types

STOP = "StopGradient"
"""The operator through which no gradient passes."""


class Path:
    """Buffers and nodes on a differentiable way from ``wrt`` to ``outputs``; integers and bool end every way."""

    def __init__(self, graph: Graph, outputs: Iterable[str], wrt: Iterable[str]):
        self._graph = graph
        order = [n for n in graph.nodes() if getattr(n, "op_type", None) != STOP]
        varied = self._forward(order, wrt)
        useful = self._backward(order, outputs)
        self._buffers = varied & useful
        self.nodes = [n for n in order if self._on(graph.inputs_of(n)) and self._on(graph.outputs_of(n))]

    def __contains__(self, array: str | None) -> bool:
        """Does the array (or the buffer it is a view of) have a gradient?"""
        return array is not None and self._graph.root(array)[0] in self._buffers

    def _on(self, names: Iterable[str | None]) -> bool:
        return any(n in self for n in names)

    def _floats(self, names: Iterable[str | None]) -> set[str]:
        floats = [n for n in names if n is not None and types.is_float(self._graph.dtype(n))]
        return {self._graph.root(n)[0] for n in floats}

    def _forward(self, order: list[Node], wrt: Iterable[str]) -> set[str]:
        varied = self._floats(wrt)
        for node in order:
            if self._floats(self._graph.inputs_of(node)) & varied:
                varied |= self._floats(self._graph.outputs_of(node))
        return varied

    def _backward(self, order: list[Node], outputs: Iterable[str]) -> set[str]:
        useful = self._floats(outputs)
        for node in reversed(order):
            if self._floats(self._graph.outputs_of(node)) & useful:
                useful |= self._floats(self._graph.inputs_of(node))
        return useful

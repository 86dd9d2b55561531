"""Bytes that each node of a graph must move, from its memlets alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sympy

if TYPE_CHECKING:
    import dace

    from daceopt.ir.graph import Graph


@dataclass(frozen=True)
class Movement:
    """Bytes read and written: expressions over the size symbols, per compute node and in total."""

    nodes: dict[Any, tuple[Any, Any]]  # node -> (read, written)

    @property
    def read(self) -> Any:
        return sympy.Add(*(r for r, _ in self.nodes.values()))

    @property
    def written(self) -> Any:
        return sympy.Add(*(w for _, w in self.nodes.values()))

    @property
    def total(self) -> Any:
        return self.read + self.written


def data_movement(program: dace.SDFG | Graph) -> Movement:
    """Bytes read and written by every top-level compute node of an SDFG (or an ``ir.Graph``).

    An array read through several connectors counts once per node, and a dimension that a view repeats (stride 0) costs nothing.
    """
    from dace import nodes

    sdfg: dace.SDFG = getattr(program, "sdfg", program)
    found: dict[Any, tuple[Any, Any]] = {}
    for state in sdfg.states():
        scopes = state.scope_dict()
        for node in state.nodes():
            if scopes[node] is not None or isinstance(node, (nodes.AccessNode, nodes.ExitNode)):
                continue
            last = state.exit_node(node) if isinstance(node, nodes.EntryNode) else node
            found[node] = (_bytes(sdfg, state.in_edges(node)), _bytes(sdfg, state.out_edges(last)))
    return Movement(found)


def _bytes(sdfg: dace.SDFG, edges: Iterable[Any]) -> Any:
    per_array: dict[str, Any] = {}
    for edge in edges:
        if edge.data.is_empty():
            continue
        desc = sdfg.arrays[edge.data.data]
        extents = [s for s, t in zip(desc.shape, desc.strides) if t != 0]
        per_array[edge.data.data] = sympy.Mul(desc.dtype.bytes, *extents)
    return sympy.Add(*per_array.values())

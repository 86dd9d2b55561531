"""Bytes that each node of a graph must move, from its memlets alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sympy

from daceopt.ir.region import Region, iterations

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

    An array read through several connectors counts once per node, a dimension that a view repeats (stride 0) costs
    nothing, and of an array read at run-time indices (a gather) no more counts than is read. Control flow counts what
    all of its iterations move.
    """
    from dace import nodes

    sdfg: dace.SDFG = getattr(program, "sdfg", program)
    found: dict[Any, tuple[Any, Any]] = {}
    for state in sdfg.states():
        scopes = state.scope_dict()
        picked = _picked(sdfg, state, scopes)
        for node in state.nodes():
            if scopes[node] is not None or isinstance(node, (nodes.AccessNode, nodes.ExitNode)):
                continue
            if isinstance(node, Region):
                found[node] = _inside(node)
                continue
            last = state.exit_node(node) if isinstance(node, nodes.EntryNode) else node
            found[node] = (
                _bytes(sdfg, state.in_edges(node), picked.get(node, {})),
                _bytes(sdfg, state.out_edges(last), {}),
            )
    return Movement(found)


def _inside(node: Region) -> tuple[Any, Any]:
    """Bytes of all iterations of a loop, or of the dearer branch of a choice."""
    moved = [data_movement(body) for body in node.bodies]
    read, written = sympy.Max(*(m.read for m in moved)), sympy.Max(*(m.written for m in moved))
    return iterations(node) * read, iterations(node) * written


def _picked(sdfg: dace.SDFG, state: Any, scopes: Mapping[Any, Any]) -> dict[Any, dict[str, Any]]:
    """Top-level scope -> array -> bytes at most read of it, for arrays that it reads at run-time indices."""
    import dace

    tasklets = {
        n: _enclosing(n, scopes) for n in state.nodes() if isinstance(n, dace.nodes.Tasklet) and scopes[n] is not None
    }
    reads = [(chain, edge) for node, chain in tasklets.items() for edge in state.in_edges(node) if edge.dst_conn]
    gathered = {
        (chain[-1], e.data.data) for chain, e in reads if isinstance(e.dst.in_connectors[e.dst_conn], dace.pointer)
    }
    found: dict[Any, dict[str, Any]] = {}
    for chain, edge in reads if gathered else ():
        array = edge.data.data
        if (chain[-1], array) in gathered:
            elements = _loads(edge.dst, edge.dst_conn) * sympy.Mul(*(entry.map.range.num_elements() for entry in chain))
            arrays = found.setdefault(chain[-1], {})
            arrays[array] = arrays.get(array, 0) + elements * sdfg.arrays[array].dtype.bytes
    return found


def _enclosing(node: Any, scopes: Mapping[Any, Any]) -> list[Any]:
    """Map entries around ``node``, innermost first."""
    entry = scopes[node]
    return [] if entry is None else [entry, *_enclosing(entry, scopes)]


def _loads(tasklet: Any, connector: str) -> int:
    """Elements that one execution reads through a connector: one, or one for each distinct run-time index."""
    found = {
        part
        for assignment in getattr(tasklet, "assignments", ())
        for part in sympy.preorder_traversal(assignment.expr)
        if type(part).__name__ == "load" and str(part.args[0]) == connector
    }
    return max(1, len(found))


def _bytes(sdfg: dace.SDFG, edges: Iterable[Any], picked: Mapping[str, Any]) -> Any:
    """Bytes of the arrays on ``edges``; ``picked`` bounds those of which only some elements are read."""
    per_array: dict[str, Any] = {}
    for edge in edges:
        if edge.data.is_empty():
            continue
        desc = sdfg.arrays[edge.data.data]
        extents = [s for s, t in zip(desc.shape, desc.strides) if t != 0]
        whole = sympy.Mul(desc.dtype.bytes, *extents)
        per_array[edge.data.data] = sympy.Min(whole, picked[edge.data.data]) if edge.data.data in picked else whole
    return sympy.Add(*per_array.values())

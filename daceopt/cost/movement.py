"""Bytes that each node of a graph must move."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import sympy

from daceopt.ir.control.region import Region, iterations
from daceopt.ir.graph.kinds import Node
from daceopt.ir.kernel.kernel_node import KernelNode
from daceopt.ir.scalar.dims import Dim

if TYPE_CHECKING:
    from daceopt.ir.graph.graph import Graph
    from daceopt.ir.kernel.kernel import Kernel, Stage


@dataclass(frozen=True)
class Movement:
    """Bytes read and written: expressions over the size symbols, per compute node and in total."""

    nodes: dict[Node, tuple[Dim, Dim]]  # node -> (read, written)

    @property
    def read(self) -> sympy.Expr:
        return sympy.Add(*(r for r, _ in self.nodes.values()))

    @property
    def written(self) -> sympy.Expr:
        return sympy.Add(*(w for _, w in self.nodes.values()))

    @property
    def total(self) -> sympy.Expr:
        return self.read + self.written


def data_movement(graph: Graph) -> Movement:
    """Bytes read and written by every compute node of a graph.

    An array read through several connectors counts once per node, a dimension that a view repeats (stride 0) costs
    nothing, and of an array read at run-time indices (a gather) no more counts than is read. Control flow counts what
    all of its iterations move.
    """
    moved: dict[Node, tuple[Dim, Dim]] = {}
    for node in graph.compute():
        if isinstance(node, Region):
            moved[node] = _inside(node)
            continue
        picked = picked_bytes(graph, node.kernel) if isinstance(node, KernelNode) else {}
        moved[node] = _bytes(graph, graph.inputs_of(node), picked), _bytes(graph, graph.outputs_of(node), {})
    return Movement(moved)


def _inside(node: Region) -> tuple[Dim, Dim]:
    """Bytes of all iterations of a loop, or of the dearer branch of a choice."""
    moved = [data_movement(body) for body in node.bodies]
    read, written = sympy.Max(*(m.read for m in moved)), sympy.Max(*(m.written for m in moved))
    return iterations(node) * read, iterations(node) * written


def picked_bytes(graph: Graph, kernel: Kernel) -> dict[str, Dim]:
    """Array -> bytes at most read of it, for arrays that a kernel reads at run-time indices."""
    reads = [(stage, c, access) for stage in kernel.stages for c, access in stage.reads.items()]
    gathered = {access.array for _, _, access in reads if None in access.index and access.array not in kernel.locals}
    picked: dict[str, Dim] = dict.fromkeys(gathered, 0)
    for stage, connector, access in reads if gathered else ():
        if access.array in gathered:
            elements = _loads(stage, connector) * kernel.most(stage.params)
            picked[access.array] += elements * graph.dtype(access.array).bytes
    return picked


def _loads(stage: Stage, connector: str) -> int:
    """Elements that one iteration reads through a connector: one, or one for each distinct run-time index."""
    loads = {
        part
        for assignment in stage.assignments
        for part in sympy.preorder_traversal(assignment.expr)
        if type(part).__name__ == "load" and str(part.args[0]) == connector
    }
    return max(1, len(loads))


def _bytes(graph: Graph, arrays: Iterable[str | None], picked: Mapping[str, Dim]) -> Dim:
    """Bytes of arrays; ``picked`` bounds those of which only some elements are read."""
    per_array: dict[str, Dim] = {}
    for name in arrays:
        if name is not None:
            extents = [n for n, stride in zip(graph.shape(name), graph.strides(name)) if stride != 0]
            whole = sympy.Mul(graph.dtype(name).bytes, *extents)
            per_array[name] = sympy.Min(whole, picked[name]) if name in picked else whole
    return sympy.Add(*per_array.values())

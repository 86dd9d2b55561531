"""The invariants of a graph, checked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sympy

from daceopt.ir.data.provenance import label_of
from daceopt.ir.graph import order, parts

if TYPE_CHECKING:
    from daceopt.ir.graph.graph import Graph
    from daceopt.ir.graph.kinds import Node
    from daceopt.ir.kernel.kernel_node import KernelNode


def validate(graph: Graph) -> None:
    """Raise ``ValueError`` when an invariant does not hold."""
    for name in graph.arrays():
        _check_writers(graph, name)
        _check_sizes(graph, name)
    check_complete(graph)
    order.check(graph, graph.nodes())
    if graph.nodes() != graph._order.copy().of(graph):
        raise ValueError(f"graph {graph.name} was edited past its methods: its order is another than it says")
    for node in graph.nodes():
        _check_connectors(graph, node)
        for body in getattr(node, "bodies", ()):
            body.validate()
    for node in graph.kernels():
        _check_kernel(graph, node)
    if graph.locals != {name: node for node in graph.kernels() for name in node.kernel.locals}:
        raise ValueError(f"kernels of graph {graph.name} have other locals than when they were added")


def check_complete(graph: Graph) -> None:
    """Raise ValueError for a cycle, and where what is read or returned is no input or constant and is never written."""
    read = {graph.root(n)[0] for node in graph.nodes() for n in graph.inputs_of(node) if n is not None}
    for name in sorted(read.union(graph.outputs)):
        if not graph.has(name):
            raise ValueError(f"array {name} does not exist")
        if not graph.is_given(graph.root(name)[0]) and not graph.producers(name):
            raise ValueError(f"array {name} is {'returned' if name in graph.outputs else 'read'} but never written")


def _check_writers(graph: Graph, name: str) -> None:
    """Arrays are written once: by a node, or in parts that have each element once."""
    together = graph.parts_of(name)
    if graph.is_written(name) and (graph.is_given(name) or (together and graph.def_use.writer(name) is not None)):
        raise ValueError(f"array {name} is written more than once")
    if graph.is_part(name) and name in (*graph.outputs, *graph.saved):
        raise ValueError(f"array {name} is a part of {graph.part(name).whole}, which is what can be an output or saved")
    if together:
        parts.check(graph, name)


def _check_sizes(graph: Graph, name: str) -> None:
    """Extents and strides name sizes that the graph knows."""
    desc = graph.desc(name)
    named = {str(s) for e in (*desc.shape, *desc.strides) for s in sympy.sympify(e).free_symbols}
    if unknown := sorted(named - graph.size_names.keys()):
        raise ValueError(f"array {name} of shape {desc.shape} names {', '.join(unknown)}, which is no size")


def _check_connectors(graph: Graph, node: Node) -> None:
    """Each connector of a node has its array."""
    for verb, connectors, operands in (
        ("reads", node.in_connectors, graph.reads(node)),
        ("writes", node.out_connectors, graph.writes(node)),
    ):
        if connectors.keys() != operands.keys():
            raise ValueError(f"{label_of(node)} {verb} at {sorted(operands)}, its connectors are {sorted(connectors)}")
        if missing := [name for name in operands.values() if not graph.has(name)]:
            raise ValueError(f"{label_of(node)} {verb} {missing[0]}, which is no array of graph {graph.name}")


def _check_kernel(graph: Graph, node: KernelNode) -> None:
    """A node reads and writes what its kernel does, each dimension of it."""
    kernel = node.kernel
    for verb, found, known in (
        ("reads", kernel.reads(), graph.inputs_of(node)),
        ("writes", kernel.writes(), graph.outputs_of(node)),
    ):
        if sorted({a.array for a in found}) != list(known):
            raise ValueError(f"kernel {kernel.label} {verb} {sorted({a.array for a in found})}, its node {list(known)}")
        for access in found:
            shape = graph.shape(access.array)
            if len(access.index) != len(shape):
                raise ValueError(f"kernel {kernel.label} {verb} {access.array} of shape {shape} at {access.index}")

"""The invariants of a graph, checked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations
from math import prod
from typing import Any

import sympy

from daceopt.errors import IllegalParts
from daceopt.ir.data.parts import apart, is_inside
from daceopt.ir.data.provenance import label_of
from daceopt.ir.graph import order
from daceopt.ir.graph.dataflow_graph import DataflowGraph
from daceopt.ir.graph.kinds import Node
from daceopt.ir.kernel.kernel_node import KernelNode
from daceopt.ir.scalar.dims import Dim


def check(graph: DataflowGraph, nodes: Sequence[Node]) -> None:
    """Raise ``ValueError`` when an invariant of ``graph``, whose ``nodes`` run in this order, does not hold."""
    for name in graph.arrays():
        _check_writers(graph, name)
        _check_sizes(graph, name)
    check_complete(graph)
    order.check(graph, nodes)
    for node in nodes:
        _check_connectors(graph, node)
        for body in getattr(node, "bodies", ()):
            body.validate()
    kernels = [node for node in nodes if isinstance(node, KernelNode)]
    for kernel in kernels:
        _check_kernel(graph, kernel)
    if graph.locals != {name: node for node in kernels for name in node.kernel.locals}:
        raise ValueError(f"kernels of graph {graph.name} have other locals than when they were added")


def check_complete(graph: DataflowGraph) -> None:
    """Raise ValueError for a cycle, and where what is read or returned is no input or constant and is never written."""
    read = {graph.root(n)[0] for node in order.topological(graph) for n in graph.inputs_of(node) if n is not None}
    for name in sorted(read.union(graph.outputs)):
        if not graph.has(name):
            raise ValueError(f"array {name} does not exist")
        if not graph.is_given(graph.root(name)[0]) and not graph.producers(name):
            raise ValueError(f"array {name} is {'returned' if name in graph.outputs else 'read'} but never written")


def _check_writers(graph: DataflowGraph, name: str) -> None:
    """Arrays are written once: by a node, or in parts that have each element once."""
    together = graph.parts_of(name)
    if graph.is_written(name) and (graph.is_given(name) or (together and graph.def_use.writer(name) is not None)):
        raise ValueError(f"array {name} is written more than once")
    if graph.is_part(name) and name in (*graph.outputs, *graph.saved):
        raise ValueError(f"array {name} is a part of {graph.part(name).whole}, which is what can be an output or saved")
    if together:
        check_parts(graph, name)


def check_parts(graph: DataflowGraph, whole: str) -> None:
    """Raise IllegalParts unless the parts of ``whole`` have each of its elements once, for all sizes."""
    shape, parts, sizes = graph.shape(whole), graph.parts_of(whole), graph.sizes
    boxes = {name: (graph.part(name).starts, graph.shape(name)) for name in parts}
    for name, (starts, extents) in boxes.items():
        if not graph.producers(name):
            raise IllegalParts(f"{name}, a part of {whole}, is never written")
        if not is_inside((starts, extents), shape, sizes):
            raise IllegalParts(f"part {_boxes_text(name, boxes)} leaves {whole}, of shape {_shape_text(shape)}")
    for one, other in combinations(boxes, 2):
        if not apart(boxes[one], boxes[other], sizes):
            raise IllegalParts(f"parts {_boxes_text(one, boxes)} and {_boxes_text(other, boxes)} of {whole} overlap")
    total: Dim = sum(prod(extents) for _, extents in boxes.values())
    if sympy.expand(total - prod(shape)) != 0:
        covered = f"{', '.join(_boxes_text(n, boxes) for n in boxes)} have {total} of its {prod(shape)} elements"
        raise IllegalParts(f"the parts of {whole}, of shape {_shape_text(shape)}, leave a gap: {covered}")


def _boxes_text(name: str, boxes: dict[str, Any]) -> str:
    return f"{name} [{', '.join(f'{s}:{sympy.sympify(s + e)}' for s, e in zip(*boxes[name]))}]"


def _shape_text(shape: Iterable[Dim]) -> str:
    return f"[{', '.join(map(str, shape))}]"


def _check_sizes(graph: DataflowGraph, name: str) -> None:
    """Extents and strides name sizes that the graph knows."""
    desc = graph.desc(name)
    named = {str(s) for e in (*desc.shape, *desc.strides) for s in sympy.sympify(e).free_symbols}
    if unknown := sorted(named - graph.size_names.keys()):
        raise ValueError(f"array {name} of shape {desc.shape} names {', '.join(unknown)}, which is no size")


def _check_connectors(graph: DataflowGraph, node: Node) -> None:
    """Each connector of a node has its array."""
    for verb, connectors, operands in (
        ("reads", node.in_connectors, graph.reads(node)),
        ("writes", node.out_connectors, graph.writes(node)),
    ):
        if connectors.keys() != operands.keys():
            raise ValueError(f"{label_of(node)} {verb} at {sorted(operands)}, its connectors are {sorted(connectors)}")
        if missing := [name for name in operands.values() if not graph.has(name)]:
            raise ValueError(f"{label_of(node)} {verb} {missing[0]}, which is no array of graph {graph.name}")


def _check_kernel(graph: DataflowGraph, node: KernelNode) -> None:
    """A node reads and writes what its kernel does, each dimension of it."""
    kernel = node.kernel
    for verb, used, own in (
        ("reads", kernel.reads(), graph.inputs_of(node)),
        ("writes", kernel.writes(), graph.outputs_of(node)),
    ):
        if sorted({a.array for a in used}) != list(own):
            raise ValueError(f"kernel {kernel.label} {verb} {sorted({a.array for a in used})}, its node {list(own)}")
        for access in used:
            shape = graph.shape(access.array)
            if len(access.index) != len(shape):
                raise ValueError(f"kernel {kernel.label} {verb} {access.array} of shape {shape} at {access.index}")

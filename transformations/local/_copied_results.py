"""Kernels, products and updates of rows whose result is copied, element after element, to a result of the program:
they write there."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from math import prod

from daceopt.ir.control.region import Region
from daceopt.ir.graph.graph import Graph
from daceopt.ir.kernel.kernel import Access, Kernel
from daceopt.ir.kernel.kernel_node import KernelNode
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.nodes.library import Contraction
from daceopt.ir.scalar.dims import Dim, Shape, dim, row_major
from daceopt.ops.core.algorithm import Algorithm

Moved = Kernel | Contraction | Algorithm


def written_where_copied(graph: Graph, source: str, result: str, copy: KernelNode) -> Moved | None:
    """The kernel that makes ``source`` with ``result`` in its place, or the call that makes it; None where it must not,
    or ``copy``, a kernel that copies one to the other in row-major order, does something else, too."""
    producer = graph.producer(source)
    if not isinstance(producer, KernelNode | Contraction | Algorithm) or not _may_move(graph, source, result, copy):
        return None
    if isinstance(producer, Algorithm):  # which sees rows, whatever the shape
        return producer if producer.updating else None
    if isinstance(producer, Contraction):
        return producer if _divides_rows(graph, producer, graph.shape(result)) else None
    kernel = producer.kernel
    if kernel.schedule is not None or any(a.array == source for s in kernel.stages for a in s.reads.values()):
        return None
    stages = []
    for stage in kernel.stages:
        moved = {c: _move(a, graph, source, result) for c, a in stage.writes.items()}
        writes = {c: a for c, a in moved.items() if a is not None}
        if len(writes) < len(moved):
            return None
        stages.append(replace(stage, writes=writes))
    return replace(kernel, stages=stages)


def move(graph: Graph, source: str, result: str, copy: KernelNode, kernel: Moved) -> None:
    """Put ``kernel``, or the call, in the place of what makes ``source`` and of ``copy``; readers of the source read
    on."""
    if isinstance(kernel, Contraction):
        _multiply_into(graph, kernel, result, copy)
    elif isinstance(kernel, Algorithm):
        reads = graph.reads(kernel)
        graph.take_out([kernel, copy])
        graph.add_node(deepcopy(kernel), reads, {"Out0": result})
    else:
        graph.take_out([graph.producer(source), copy])
        graph.add_kernel(kernel)
    if graph.consumers(source) or graph.views_of(source):
        graph.replace_uses(source, Builder(graph, "relayout").reshape(result, graph.shape(source)))


def _divides_rows(graph: Graph, product: Contraction, shape: Shape) -> bool:
    """Does ``shape`` have the product's columns, and its rows as some axes? They are a batch that shares the right
    factor, which libraries take as rows again."""
    shapes = {c: graph.shape(n) for c, n in product.operands(graph).items()}
    rows, columns = shapes["Y"][-2:]
    if any(len(shapes[c]) != 2 for c in "YAB") or len(shapes.get("Bias", [columns])) != 1:
        return False
    return len(shape) > 2 and dim(shape[-1] - columns) == 0 and dim(prod(shape[:-1]) - rows) == 0


def _multiply_into(graph: Graph, product: Contraction, result: str, copy: KernelNode) -> None:
    """Let the product write ``result``: its rows are read as the axes that the result has of them."""
    reads, lead = graph.reads(product), graph.shape(result)[:-1]
    twin = deepcopy(product)
    graph.take_out([product, copy])
    b = Builder(graph, "relayout")
    divided = {c: b.reshape(n, (*lead, graph.shape(n)[1])) if c in ("A", "C") else n for c, n in reads.items()}
    graph.add_node(twin, divided, {"Y": result})


def _may_move(graph: Graph, source: str, result: str, copy: KernelNode) -> bool:
    if result not in graph.outputs or not graph.is_contiguous(result) or len(graph.outputs_of(copy)) != 1:
        return False
    if (
        graph.is_kept(source)
        or not graph.is_transient(source)
        or graph.strides(source) != row_major(graph.shape(source))
    ):
        return False
    if any(graph.is_part(n) or graph.parts_of(n) for n in (source, result)):
        return False
    return not any(isinstance(n, Region) or getattr(n, "in_place", None) for n in graph.all_consumers(source))


def _move(write: Access, graph: Graph, source: str, result: str) -> Access | None:
    if write.array != source:
        return write
    index = _regroup(write.index, graph.shape(source), graph.shape(result))
    return None if index is None else replace(write, array=result, index=index)


def _regroup(index: Sequence[Dim], shape: Shape, result: Shape) -> tuple[Dim, ...] | None:
    """The index of an element of an array of ``shape`` in one of ``result``, whose axes are each some of the former
    together; None where an axis is divided."""
    rest = [(i, n) for i, n in zip(index, shape, strict=True) if n != 1]
    places: list[Dim] = []
    for extent in result:
        place: Dim = 0
        count: Dim = 1
        while dim(count - extent) != 0:
            if not rest:
                return None
            i, n = rest.pop(0)
            place, count = place * n + i, dim(prod((count, n)))
            if isinstance(count, int) and isinstance(extent, int) and count > extent:
                return None
        places.append(place)
    return None if rest else tuple(places)

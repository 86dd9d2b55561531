"""Kernels: the loop over the axis runs over a part of it; point-wise kernels, reductions over other axes, softmax."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import sympy

from daceopt.ir.access.boxes import Interval, span
from daceopt.ir.data import parts
from daceopt.ir.data.view_boxes import nearest
from daceopt.ir.graph.graph import Graph
from daceopt.ir.kernel.kernel import Access, Kernel, Stage
from daceopt.ir.kernel.kernel_node import KernelNode
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.scalar.dims import Dim, dim
from daceopt.splits.narrowing import narrow
from daceopt.splits.rules import CannotSplit, Division, Piece, splits


@splits(KernelNode)
def kernel_split(graph: Graph, node: KernelNode, axis: int) -> Division:
    """Every array that the kernel writes is split by the parameter that walks along the axis of the first.

    Refused: an axis that no single parameter walks with step 1, a result that does not depend on it, a reduction over
    it, and values inside of one iteration that are read at other elements of it (a softmax along the axis).
    """
    kernel = node.kernel
    first = next(n for n in graph.outputs_of(node) if n is not None)
    own = axis % max(len(graph.shape(first)), 1)
    index = next(a.index for a in kernel.writes() if a.array == first)
    if not graph.shape(first) or index[own] not in kernel.extents:
        along = index[own] if graph.shape(first) else "nothing"
        raise CannotSplit(f"kernel {kernel.label}: axis {own} of {first} is walked by {along}, expected one loop")
    if kernel.forwarded_arrays():
        raise CannotSplit(f"kernel {kernel.label} reads {min(kernel.forwarded_arrays())}, which it writes")
    p = index[own]
    check_locals(kernel, p)
    return Division(_axes(graph, kernel, p, first), lambda b, piece: _emit(b, kernel, p, piece))


def _axes(graph: Graph, kernel: Kernel, p: sympy.Symbol, first: str) -> dict[str, int]:
    """The axis of each array that ``p`` walks along, ``first`` first."""
    axes: dict[str, int] = {first: -1}
    for access in kernel.writes():
        axis = next((k for k, e in enumerate(access.index) if e == p), None)
        whole = graph.shape(access.array)[axis] if axis is not None else None
        if axis is None or whole != kernel.extents[p] or sum(p in _free(e) for e in access.index) > 1:
            raise CannotSplit(f"kernel {kernel.label}: loop {p} does not walk along one axis of {access.array}")
        if axes.get(access.array, -1) not in (-1, axis):
            raise CannotSplit(f"kernel {kernel.label} writes {access.array} in two ways")
        axes[access.array] = axis
    return axes


def check_locals(kernel: Kernel, p: sympy.Symbol, summed: Collection[str] = ()) -> None:
    """Raise CannotSplit where one iteration of ``p`` reads what another has written, or several write to one element of
    an array that is none of ``summed``."""
    for stage in kernel.stages:
        for conn, access in stage.writes.items():
            inside = access.array in kernel.locals and p in kernel.outer  # one value for each iteration of p
            if p in stage.reduced_params(conn) and not inside and access.array not in summed:
                raise CannotSplit(f"kernel {kernel.label} reduces over {p} into {access.array}")
    written = {a.array: a.index for s in kernel.stages for a in s.writes.values() if a.array in kernel.locals}
    for access in (a for s in kernel.stages for a in s.reads.values() if a.array in kernel.locals):
        for read, write in zip(access.index, written[access.array], strict=True):
            if (p in _free(read) or p in _free(write)) and not read == write == p:
                raise CannotSplit(f"kernel {kernel.label} reads {access.array} at other elements of {p} than it writes")


def _free(expr: Dim) -> set[sympy.Symbol]:
    return getattr(expr, "free_symbols", set())


def _emit(b: Builder, kernel: Kernel, p: sympy.Symbol, piece: Piece) -> None:
    extents = {**kernel.extents, p: piece.extent}
    stages = [_stage(b, kernel, stage, p, piece, extents) for stage in kernel.stages]
    written = {a.array: a.index for s in kernel.stages for a in s.writes.values() if a.array in kernel.locals}
    local = {
        name: (dtype, tuple(piece.extent if e == p else n for e, n in zip(written[name], shape, strict=True)))
        for name, (dtype, shape) in kernel.locals.items()
    }
    label = b.graph.maker.label or kernel.label
    b.graph.add_kernel(Kernel(label, extents, stages, kernel.outer, local).rename_locals_apart(b.graph))


def _stage(
    b: Builder, kernel: Kernel, stage: Stage, p: sympy.Symbol, piece: Piece, extents: dict[sympy.Symbol, Dim]
) -> Stage:
    """The stage over the piece: ``p`` counts from 0 again, so what it means is ``p + start``."""
    shifted = stage.subs({p: dim(p + piece.start)}, stage.params) if piece.start != 0 else stage
    inside = replace(
        shifted,
        reads={c: a if a.array in kernel.locals else shifted.reads[c] for c, a in stage.reads.items()},
        writes={
            c: a if a.array in kernel.locals else replace(a, array=piece.outputs[a.array])
            for c, a in stage.writes.items()
        },
    )
    inside = narrow(inside, extents)
    reads = {c: a if a.array in kernel.locals else _nearest(b, piece, a, extents) for c, a in inside.reads.items()}
    return replace(inside, reads=reads)


def _nearest(b: Builder, piece: Piece, access: Access, extents: dict[sympy.Symbol, Dim]) -> Access:
    """The same elements, read of the smallest part that has all of them, or of a view of the parts that do."""
    graph = b.graph
    if (held := piece.held.get(access.array)) is not None:
        return Access(held.name, _move(access, {held.axis: held.start}), access.wcr)
    if not graph.parts_of(graph.written_array(access.array)):
        return access
    starts, box = _reach(graph, access, extents)
    array, inside = parts.covering(graph, access.array, starts, box)
    if len(graph.sources(array)) > 1 and tuple(box) != graph.shape(array) and 0 not in box:
        view = nearest(graph, b.slice(array, inside, [s + n for s, n in zip(inside, box, strict=True)]))
        if len(graph.sources(view)) < len(graph.sources(array)):
            array, inside = view, [0] * len(box)
    whole = any(e is None and graph.shape(array)[k] != graph.shape(access.array)[k] for k, e in enumerate(access.index))
    shifts = {k: s - t for k, (s, t) in enumerate(zip(starts, inside, strict=True))}
    return access if whole else Access(array, _move(access, shifts), access.wcr)


def _move(access: Access, shifts: Mapping[int, Dim]) -> tuple[Dim | None, ...]:
    """The index less ``shifts`` (axis -> elements)."""
    return tuple(None if e is None else dim(e - shifts.get(k, 0)) for k, e in enumerate(access.index))


def _reach(graph: Graph, access: Access, extents: Mapping[sympy.Symbol, Dim]) -> tuple[list[Dim], list[Dim]]:
    """Starts and extents of a box that has all elements which are read."""
    ranges, places = {p: Interval.whole(n) for p, n in extents.items()}, zip(access.index, graph.shape(access.array))
    box = [(None if value is None else span(value, ranges)) or Interval.whole(n) for value, n in places]
    return [interval.start for interval in box], [interval.size for interval in box]

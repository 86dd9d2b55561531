"""The gradient of views: a view again where every element is seen once, else elements put in their place or summed."""

from __future__ import annotations

from collections.abc import Mapping

import dace
import sympy

from daceopt.autodiff.placement import place
from daceopt.errors import Unsupported
from daceopt.ir.access.dataflow import is_bijective
from daceopt.ir.data.parts import Box, tile
from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.view_index import view_index
from daceopt.ir.nodes.builder import Builder, reshaped_strides
from daceopt.ir.nodes.library import IndexAdd
from daceopt.ir.scalar.affine import affine, same
from daceopt.ir.scalar.dims import Dim, Shape, dim, row_major
from daceopt.ir.scalar.symbols import param


def view_adjoint(b: Builder, view: str, g: str) -> str:
    """The contribution to the gradient of the view's source, in the source's shape, from the view's gradient ``g``.

    Raises Unsupported when the view's strides cannot be explained by those of its source.
    """
    graph = b.graph
    source = graph.view_source(view)
    shape, strides = graph.shape(source), graph.strides(source)
    if 0 in graph.shape(view):
        return b.full(shape, 0, graph.dtype(view))
    if _is_reshape(graph.shape(view), graph.strides(view), graph.view_offset(view), shape, strides):
        return b.reshape(g, shape)
    layout = graph.shape(view), graph.strides(view), graph.view_offset(view)
    index = view_index(*layout, shape, strides, graph.sizes)
    if index is not None:
        return _undo(b, g, index, shape)
    if not _same_strides(strides, row_major(shape), shape):
        raise Unsupported(
            f"view {view} (shape {graph.shape(view)}, strides {graph.strides(view)}) of {source} "
            f"(shape {shape}, strides {strides}) has "
            "no index in its source's dimensions; copy the source to make it contiguous"
        )
    if graph.is_contiguous(view):  # one run of elements, however its extents divide it
        count = graph.size(view)
        run = _undo(b, b.reshape(g, (count,)), (dim(graph.view_offset(view) + param(0)),), (graph.size(source),))
        return b.reshape(run, shape)
    flat: Dim = graph.view_offset(view) + sum(s * param(k) for k, s in enumerate(graph.strides(view)))
    if any(not isinstance(s, int) for s in graph.strides(view)):
        return b.reshape(_scatter(b, g, dim(flat), graph.size(source)), shape)
    return b.reshape(_undo(b, g, (dim(flat),), (graph.size(source),)), shape)


def joined_adjoint(b: Builder, source: str, grads: Mapping[str, str]) -> str | None:
    """The gradient of ``source``, put together from those of views that are boxes and have each of its elements once
    (what a split makes); None where they are not."""
    graph = b.graph
    boxes = {view: _box(graph, view, source) for view in grads}
    if (
        len(boxes) < 2
        or None in boxes.values()
        or not tile([x for x in boxes.values() if x], graph.shape(source), graph.sizes)
    ):
        return None
    whole = graph.add_array(b.label, graph.shape(source), graph.dtype(source))
    for view, g in grads.items():
        starts, extents = boxes[view] or ((), ())
        b.copy(g, out=graph.add_part(whole, b.label, starts, extents))
    return whole


def _box(graph: Graph, view: str, source: str) -> Box | None:
    """Where a view that is a box of ``source`` begins, and its extents; None where it is anything else."""
    own, shape = graph.shape(view), graph.shape(source)
    if len(own) != len(shape) or not own or 0 in own:
        return None
    layout = own, graph.strides(view), graph.view_offset(view)
    index = view_index(*layout, shape, graph.strides(source), graph.sizes)
    if index is None:
        return None
    steps = [param(k) if n != 1 else 0 for k, n in enumerate(own)]
    starts = [dim(sympy.expand(e - p)) for e, p in zip(index, steps, strict=True)]
    return None if any(getattr(s, "free_symbols", set()) & {*steps} for s in starts) else (starts, own)


def _scatter(b: Builder, g: str, flat: sympy.Expr, size: Dim) -> str:
    """A flat array of ``size`` to which the elements of ``g`` are added at their positions ``flat``."""
    shape = b.graph.shape(g)
    index = b.graph.add_array("position", shape, dace.int64)
    b.map(shape, {}, {"out": (index, lambda *i: i)}, lambda i: flat, label="position")
    out = b.graph.add_array("view_grad", (size,), b.graph.dtype(g))
    count = b.graph.size(g)
    operands = {"Index": b.reshape(index, (count,)), "dY": b.contiguous(b.reshape(g, (count,)))}
    b.library(IndexAdd, operands, {"dW": out})
    return out


def _is_reshape(own: Shape, steps: Shape, offset: Dim, shape: Shape, strides: Shape) -> bool:
    """Does the view list the source's elements in the source's row-major order?"""
    if not same(offset, 0) or not same(sympy.prod(own), sympy.prod(shape)):
        return False
    expected = reshaped_strides(shape, strides, own)
    return expected is not None and _same_strides(steps, expected, own)


def _same_strides(a: Shape, b: Shape, shape: Shape) -> bool:
    return all(n == 1 or same(s, t) for s, t, n in zip(a, b, shape, strict=True))


def _undo(b: Builder, g: str, index: tuple[Dim, ...], shape: Shape) -> str:
    """The array of ``shape`` whose elements gather the entries of ``g`` whose ``index`` points to them."""
    own = b.graph.shape(g)
    used = {s for e in index if isinstance(e, sympy.Expr) for s in e.free_symbols}
    dropped = [k for k in range(len(own)) if param(k) not in used]
    if dropped:
        g = _drop(b, g, dropped)
    extents = {param(k): n for k, n in enumerate(own) if k not in dropped}
    if not is_bijective(index, shape, extents):
        return place(b, g, list(extents), extents, index, shape)
    return _permute(b, g, list(extents), index, shape)


def _drop(b: Builder, g: str, axes: list[int]) -> str:
    """Sum over broadcast dimensions; those of extent 1 are only squeezed."""
    if all(same(b.graph.shape(g)[k], 1) for k in axes):
        return b.squeeze(g, axes)
    return b.reduce("sum", None, g, axes=axes, label="sum_gradient")


def _permute(b: Builder, g: str, order: list[sympy.Symbol], index: tuple[Dim, ...], shape: Shape) -> str:
    """A view of ``g`` with its dimensions permuted, reversed, and extents of 1 inserted."""
    steps, offset = [], 0
    for e, n in zip(index, shape, strict=True):
        form = affine(e, order)
        if not form.terms:
            steps.append(1)
            continue
        ((p, sign),) = form.terms
        stride = b.graph.strides(g)[order.index(p)]
        steps.append(dim(stride * sign))
        offset += stride * (n - 1) if sign < 0 else 0
    return b.graph.add_view(g, b.label, shape, steps, dim(offset))

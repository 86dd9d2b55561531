"""Which element of its source an element of a view is: one affine index for each dimension of the source."""

from __future__ import annotations

from collections.abc import Sequence

import sympy

from daceopt.ir.graph.graph import Graph
from daceopt.ir.scalar.affine import quotient, same
from daceopt.ir.scalar.dims import Dim, Shape, dim, hint
from daceopt.ir.scalar.sizes import ALL_SIZES, Sizes
from daceopt.ir.scalar.symbols import param


def view_index(
    own: Shape, steps: Shape, offset: Dim, shape: Shape, strides: Shape, sizes: Sizes = ALL_SIZES
) -> tuple[Dim, ...] | None:
    """The source element of view element ``(i0, i1, ...)``, one affine expression per source dimension, or None."""
    index = _split_offset(offset, shape, strides)
    if index is None:
        return None
    last = list(index)
    sizes = sizes.knowing(n - 1 for n in (*own, *shape))  # there are elements, or nothing is asked
    for k, (n, step) in enumerate(zip(own, steps, strict=True)):
        if n == 1:
            continue
        if step == 0:
            _match_broadcast(k, n, shape, strides, index)
            continue
        place = _dimension(n, step, shape, strides, last, sizes)
        if place is None:
            return None
        axis, factor = place
        index[axis] = dim(index[axis] + factor * param(k))
        last[axis] = dim(last[axis] + (factor * (n - 1) if factor > 0 else 0))
    return tuple(index)


def source_index(graph: Graph, array: str, source: str, index: Sequence[Dim]) -> tuple[Dim, ...] | None:
    """The element of ``source`` that ``index`` of ``array`` is, an expression per dimension.

    ``array`` is that itself, or reads it through views. None where a view has no such index, or shows parts.
    """
    result = tuple(index)
    while array != source:
        if not graph.is_view(array):
            return None
        below = graph.view_source(array)
        layout = (graph.shape(array), graph.strides(array), graph.view_offset(array))
        through = view_index(*layout, graph.shape(below), graph.strides(below), graph.sizes)
        if through is None:
            return None
        mapping = {param(k): e for k, e in enumerate(result)}
        result, array = tuple(sympy.sympify(e).xreplace(mapping) for e in through), below
    return result


def _match_broadcast(k: int, n: Dim, shape: Shape, strides: Shape, index: list[Dim]) -> None:
    """A broadcast dimension of the view may stand for a broadcast dimension of its source."""
    for axis, (size, stride) in enumerate(zip(shape, strides, strict=True)):
        if stride == 0 and same(size, n) and index[axis] == 0:
            index[axis] = param(k)
            return


def _dimension(
    n: Dim, step: Dim, shape: Shape, strides: Shape, last: list[Dim], sizes: Sizes
) -> tuple[int, int] | None:
    """The source dimension that a view dimension of extent ``n`` walks along, and its step there."""
    for axis, (size, stride) in enumerate(zip(shape, strides, strict=True)):
        factor = 1 if same(step, stride) else quotient(step, stride)
        if not isinstance(factor, int) or factor == 0 or same(size, 1):
            continue
        reach = last[axis] + factor * (n - 1)
        # a step forward stays above 0
        if sizes.is_natural(size - 1 - reach) and (factor > 0 or sizes.is_natural(reach)):
            return axis, factor
    return None


def _split_offset(offset: Dim, shape: Shape, strides: Shape) -> list[Dim] | None:
    """The multi-index of the element at ``offset``; None when it cannot be told for symbolic strides."""
    index: list[Dim] = [0] * len(shape)
    if same(offset, 0):
        return index
    rest = offset
    for axis in sorted(range(len(shape)), key=lambda k: hint(strides[k]), reverse=True):
        if strides[axis] == 0 or same(shape[axis], 1):
            continue
        steps = _steps(rest, strides[axis])
        index[axis] = steps
        rest = dim(sympy.expand(sympy.sympify(rest - steps * strides[axis])))
    return index if same(rest, 0) else None


def _steps(rest: Dim, stride: Dim) -> Dim:
    if isinstance(rest, int) and isinstance(stride, int):
        return rest // stride
    quotient, _ = sympy.div(sympy.sympify(rest), sympy.sympify(stride))
    return dim(quotient)

"""Padding by the array's own elements, as PyTorch has it: mirrored, repeated, or going on at the other end.

On each side an element has one image, or is the one that is repeated: the gradient is a sum of few along an axis."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import sympy

from daceopt.ir.graph.operands import require
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.scalar import scalar
from daceopt.ir.scalar.dims import Dim
from daceopt.ops.core.registry import ANY, Names, Operator, gradient, lowering

MOST_REPEATED = 16  # elements that are repeated more often are left to a reduction by scattering

# -------------------------------------------------------------------- where an element is from


def _reflect(i: sympy.Expr, n: Dim) -> sympy.Expr:
    distance = scalar.absolute(i)
    return scalar.minimum(distance, 2 * (n - 1) - distance)


_PLACES: dict[str, Callable[[sympy.Expr, Dim], sympy.Expr]] = {
    "reflect": _reflect,
    "edge": lambda i, n: scalar.clamp(i, n),
    "wrap": lambda i, n: scalar.pymod(i, n),
}


@lowering("BorderPad", domain="daceopt", types=ANY)
def border_pad(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    """``begins`` has what is added before each axis, ``mode`` of what. Of a mirrored axis x has more elements than are
    added on any side, of one that goes on at its other end at least as many."""
    x, out = require(inputs, 0), require(outputs, 0)
    begins, shape, result = node.attribute("begins"), b.graph.shape(x), b.graph.shape(out)
    origin = _PLACES[node.attribute("mode")]

    def element(i: tuple[sympy.Symbol, ...], x: sympy.Expr) -> sympy.Expr:
        places = zip(i, begins, shape, result)
        return scalar.load(x, *(p if n == m else origin(p - before, n) for p, before, n, m in places))

    reads = {"x": (x, lambda *i: (None,) * len(shape))}
    b.map(result, reads, {"out": (out, lambda *i: i)}, element, label="pad")


# -------------------------------------------------------------------- where an element went

Images = Iterator[tuple[sympy.Expr, sympy.Expr]]  # places in the padded axis, and which elements are there, too


def _mirror(p: sympy.Expr, before: int, extent: Dim, after: Dim) -> Images:
    """The first and the last have no image."""
    if before:
        yield before - p, scalar.logical_and(scalar.ge(p, 1), scalar.le(p, before))
    if after != 0:
        last = extent - 1
        yield before + 2 * last - p, scalar.logical_and(scalar.ge(p, last - after), scalar.lt(p, last))


def _repeat(p: sympy.Expr, before: int, extent: Dim, after: Dim) -> Images:
    for k in range(before):
        yield before - 1 - k, scalar.eq(p, 0)
    for k in range(int(after)):
        yield before + extent + k, scalar.eq(p, extent - 1)


def _cyclic(p: sympy.Expr, before: int, extent: Dim, after: Dim) -> Images:
    if before:
        yield p + before - extent, scalar.ge(p, extent - before)
    if after != 0:
        yield p + before + extent, scalar.lt(p, after)


_IMAGES = {"reflect": _mirror, "edge": _repeat, "wrap": _cyclic}


@gradient("BorderPad", domain="daceopt")
def border_pad_gradient(
    b: Builder, node: Operator, inputs: Names, outputs: Names, grads_out: Names, needs_grad: list[bool]
) -> Names:
    """Axis by axis the gradient of each element and of its images, the innermost axis, which shortens most, first."""
    gradient = require(grads_out, 0)
    shape, images = b.graph.shape(require(inputs, 0)), _IMAGES[node.attribute("mode")]
    for axis in reversed(range(len(shape))):
        if b.graph.shape(gradient)[axis] != shape[axis]:
            gradient = _fold(b, gradient, axis, shape[axis], node.attribute("begins")[axis], images)
    return [gradient]


def _fold(
    b: Builder, dy: str, axis: int, extent: Dim, before: int, images: Callable[[sympy.Expr, int, Dim, Dim], Images]
) -> str:
    full = b.graph.shape(dy)
    shape = (*full[:axis], extent, *full[axis + 1 :])
    out = b.graph.add_array("pad_grad", shape, b.graph.dtype(dy))

    def element(i: tuple[sympy.Symbol, ...], g: sympy.Expr) -> sympy.Expr:
        total = scalar.load(g, *i[:axis], i[axis] + before, *i[axis + 1 :])
        for place, there in images(i[axis], before, extent, full[axis] - extent - before):
            image = scalar.load(g, *i[:axis], scalar.clamp(place, full[axis]), *i[axis + 1 :])
            total = total + scalar.select(there, image, 0)
        return total

    reads = {"g": (dy, lambda *i: (None,) * len(shape))}
    b.map(shape, reads, {"out": (out, lambda *i: i)}, element, label="pad_grad")
    return out

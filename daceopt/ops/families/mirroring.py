"""Padding by the mirror image, as PyTorch has it: shorter than what is mirrored, so each element has one image on
each side, and the gradient is a sum of at most three elements along an axis."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from daceopt.ir import scalar
from daceopt.ir.builder import Builder
from daceopt.ir.operands import required
from daceopt.ops.core.registry import ANY, Names, Operator, gradient, lowering


@lowering("MirrorPad", domain="daceopt", types=ANY)
def mirror_pad(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    """``begins`` has what is added before each axis; x has more elements than are added on any side."""
    x, out = required(inputs, 0), required(outputs, 0)
    begins, shape, result = node.attribute("begins"), b.graph.shape(x), b.graph.shape(out)

    def element(i: Any, x: Any) -> Any:
        places = zip(i, begins, shape, result)
        return scalar.load(x, *(p if n == m else _reflected(p - before, n) for p, before, n, m in places))

    reads = {"x": (x, lambda *i: (None,) * len(shape))}
    b.map(result, reads, {"out": (out, lambda *i: i)}, element, label="pad")


def _reflected(i: Any, n: Any) -> Any:
    distance = scalar.absolute(i)
    return scalar.minimum(distance, 2 * (n - 1) - distance)


@gradient("MirrorPad", domain="daceopt")
def mirror_pad_gradient(
    b: Builder, node: Operator, inputs: Names, outputs: Names, grads_out: Names, wanted: list[bool]
) -> Names:
    """Axis by axis the gradient of each element and of its images, the innermost axis, which shortens most, first."""
    found = grads_out[0]
    if found is None or not wanted[0]:
        return [None]
    shape = b.graph.shape(required(inputs, 0))
    for axis in reversed(range(len(shape))):
        if b.graph.shape(found)[axis] != shape[axis]:
            found = _folded(b, found, axis, shape[axis], node.attribute("begins")[axis])
    return [found]


def _folded(b: Builder, dy: str, axis: int, extent: Any, before: int) -> str:
    full = b.graph.shape(dy)
    shape = (*full[:axis], extent, *full[axis + 1 :])
    out = b.graph.add_array("pad_grad", shape, b.graph.dtype(dy))

    def element(i: Any, g: Any) -> Any:
        total = scalar.load(g, *i[:axis], i[axis] + before, *i[axis + 1 :])
        for place, there in _images(i[axis], before, extent, full[axis]):
            image = scalar.load(g, *i[:axis], scalar.clamped(place, full[axis]), *i[axis + 1 :])
            total = total + scalar.select(there, image, 0)
        return total

    reads = {"g": (dy, lambda *i: (None,) * len(shape))}
    b.map(shape, reads, {"out": (out, lambda *i: i)}, element, label="pad_grad")
    return out


def _images(p: Any, before: int, extent: Any, full: Any) -> Iterator[tuple[Any, Any]]:
    """Where an element's images stand, and which elements have them: the first and the last have none."""
    if before:
        yield before - p, scalar.logical_and(scalar.ge(p, 1), scalar.le(p, before))
    after = full - extent - before
    if after != 0:
        last = extent - 1
        yield before + 2 * last - p, scalar.logical_and(scalar.ge(p, last - after), scalar.lt(p, last))

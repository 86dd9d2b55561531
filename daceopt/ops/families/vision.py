"""Operators of vision models that read an image at places of their own: Col2Im, DeformConv."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import dace
import sympy

from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.operands import require
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.scalar import scalar
from daceopt.ir.scalar.dims import Dim, dim
from daceopt.ops.core import values
from daceopt.ops.core.registry import FLOATS, Names, Operator, gradient, lowering, supports
from daceopt.ops.families.convolution import per_channel, steps, why_not_steps, zero_padded

# -------------------------------------------------------------------- Col2Im


def _blocks(
    graph: Graph, node: Operator, inputs: Names
) -> tuple[list[int], list[int], dict[str, list[int]], list[int]]:
    """(image, block, strides and dilations, pads) of a Col2Im node."""
    image, block = ([int(v) for v in values.known_elements(graph, n) or ()] for n in inputs[1:3])
    return image, block, steps(node, len(image)), list(node.attribute("pads") or [0] * (2 * len(image)))


def _counts(image: list[int], block: list[int], step: dict[str, list[int]], pads: list[int]) -> list[int]:
    """Positions of the block along each dimension."""
    rank = len(image)
    reach = [(k - 1) * d + 1 for k, d in zip(block, step["dilations"])]
    return [
        (n + pads[k] + pads[rank + k] - r) // s + 1 for k, (n, r, s) in enumerate(zip(image, reach, step["strides"]))
    ]


@lowering("Col2Im", types=FLOATS)
def columns_to_image(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    """Each pixel sums the block elements that cover it. input: [N, C * prod(block), L]; output: [N, C, image...]."""
    image, block, step, pads = _blocks(b.graph, node, inputs)
    rank, counts = len(image), _counts(image, block, step, pads)
    batch, channels = b.graph.shape(require(outputs, 0))[:2]
    columns = b.reshape(require(inputs, 0), (batch, channels, *block, *counts))

    def cover(i: tuple[sympy.Symbol, ...], x: sympy.Expr) -> sympy.Expr:
        places, conditions = [], []
        for k in range(rank):
            distance = i[2 + k] + pads[k] - i[2 + rank + k] * step["dilations"][k]
            stride = step["strides"][k]
            place = distance if stride == 1 else scalar.idiv(distance, stride)
            conditions += [scalar.ge(distance, 0), scalar.lt(place, counts[k])]
            conditions += [] if stride == 1 else [scalar.eq(scalar.pymod(distance, stride), 0)]
            places.append(scalar.minimum(scalar.maximum(place, 0), counts[k] - 1))
        value = scalar.load(x, *i[:2], *i[2 + rank :], *places)
        for condition in conditions:
            value = scalar.select(condition, value, 0)
        return value

    whole = (None,) * (2 + 2 * rank)
    b.map(
        [batch, channels, *image, *block],
        {"x": (columns, lambda *i: whole)},
        {"out": (outputs[0], lambda *i: i[: 2 + rank], "sum")},
        cover,
        label="columns_to_image",
    )


@supports("Col2Im")
def why_not_columns(graph: Graph, node: Operator) -> str | None:
    reason = values.unknown(graph, node, 1, 2)
    if reason is not None:
        return reason
    inputs = graph.inputs_of(node)
    if (why_not := why_not_steps(node, len(values.known_elements(graph, inputs[1]) or ()))) is not None:
        return why_not
    columns = graph.shape(require(inputs, 0))
    counts = _counts(*_blocks(graph, node, inputs))
    if min(counts) < 1 or dim(sympy.Mul(*counts) - columns[-1]) != 0:
        return f"columns of shape {columns}; expected {counts} positions of the block in the last dimension"
    return None


@gradient("Col2Im")
def columns_to_image_gradient(
    b: Builder, node: Operator, inputs: Names, outputs: Names, grads_out: Names, needs_grad: list[bool]
) -> Names:
    """Each block element reads dy where it was added."""
    absent: Names = [None] * len(inputs)
    if grads_out[0] is None or not needs_grad[0]:
        return absent
    image, block, step, pads = _blocks(b.graph, node, inputs)
    rank, counts = len(image), _counts(image, block, step, pads)
    padded = zero_padded(b, grads_out[0], pads[:rank], pads[rank:])
    batch, channels = b.graph.shape(padded)[:2]
    blocks = b.graph.add_array("d_columns", (batch, channels, *block, *counts), b.graph.dtype(padded))

    def place(*i: sympy.Expr) -> tuple[Dim | None, ...]:
        moved = (i[2 + k] * step["dilations"][k] + i[2 + rank + k] * step["strides"][k] for k in range(rank))
        return (*i[:2], *moved)

    b.map(b.graph.shape(blocks), {"g": (padded, place)}, {"out": (blocks, lambda *i: i)}, lambda i, g: g)
    return [b.reshape(blocks, b.graph.shape(require(inputs, 0))), *absent[1:]]


# -------------------------------------------------------------------- DeformConv


@lowering("DeformConv", types=FLOATS)
def deformable_convolution(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    """Columns sampled at kernel positions that ``offset`` moves and ``mask`` weighs, times the weights of each group.

    X: [N, C, d...]; W: [M, C/group, k...]; offset: [N, G * prod(k) * rank, e...]; mask: [N, G * prod(k), e...].
    """
    w, out, bias = require(inputs, 1), require(outputs, 0), values.at(inputs, 3)
    batch, results, *size = b.graph.shape(out)
    group = int(node.attribute("group", 1))
    depth, kernel = b.graph.shape(w)[1], b.graph.shape(w)[2:]
    columns = _sample(b, node, inputs, size)
    taps = depth * sympy.Mul(*kernel)
    y = b.matmul(
        b.reshape(w, (group, results // group, taps)), b.reshape(columns, (batch, group, taps, sympy.Mul(*size)))
    )
    y = b.reshape(y, (batch, results, *size))
    if bias is None:
        b.copy(y, out=out)
    else:
        b.elementwise(lambda v, c: v + c, y, per_channel(b, bias, len(size) + 2), out=out, label="bias")


def _sample(b: Builder, node: Operator, inputs: Names, size: Sequence[Dim]) -> str:
    """[N, C, k..., e...]: x at every moved position of the kernel, weighted by the mask."""
    x, w, offset, mask = require(inputs, 0), require(inputs, 1), require(inputs, 2), values.at(inputs, 4)
    batch, channels, *image = b.graph.shape(x)
    kernel = b.graph.shape(w)[2:]
    rank, step = len(kernel), steps(node, len(kernel))
    pads = node.attribute("pads") or [0] * (2 * rank)
    groups = int(node.attribute("offset_group", 1))
    share, dtype = channels // groups, b.graph.dtype(x)
    offsets = b.reshape(offset, (batch, groups, *kernel, rank, *size))
    columns = b.graph.add_array("columns", (batch, channels, *kernel, *size), dtype)

    def group_of(i: tuple[sympy.Symbol, ...]) -> sympy.Expr:
        return sympy.Integer(0) if groups == 1 else scalar.idiv(i[1], share)

    def sample(
        i: tuple[sympy.Symbol, ...], x: sympy.Expr, offset: sympy.Expr, mask: sympy.Expr | None = None
    ) -> sympy.Expr:
        taps, place = i[2 : 2 + rank], i[2 + rank :]
        at = [
            scalar.cast(place[k] * step["strides"][k] - pads[k] + taps[k] * step["dilations"][k], dtype)
            + scalar.load(offset, i[0], group_of(i), *taps, k, *place)
            for k in range(rank)
        ]
        value = _interpolate(x, i[:2], at, image)
        return value if mask is None else value * scalar.load(mask, i[0], group_of(i), *taps, *place)

    reads = {"x": x, "offset": offsets}
    if mask is not None:
        reads["mask"] = b.reshape(mask, (batch, groups, *kernel, *size))
    b.map(
        b.graph.shape(columns),
        {c: (n, _whole(b.graph, n)) for c, n in reads.items()},
        {"out": (columns, lambda *i: i)},
        sample,
        label="sampled",
    )
    return columns


def _whole(graph: Graph, name: str) -> Any:
    """The index function of an array that is read at run-time places."""
    return lambda *i: (None,) * len(graph.shape(name))


def _interpolate(
    x: sympy.Expr, lead: Sequence[sympy.Expr], at: Sequence[sympy.Expr], image: Sequence[sympy.Expr]
) -> sympy.Expr:
    """Linear interpolation between the 2^rank neighbours; those outside of the image count as zero, as does NaN."""
    near = [
        scalar.select(scalar.ge(p, -1), scalar.select(scalar.le(p, extent), p, extent), -1)
        for p, extent in zip(at, image)
    ]
    total: Any = 0
    for corner in product((0, 1), repeat=len(at)):
        weight, conditions, places = sympy.Integer(1), [], []
        for high, p, extent in zip(corner, near, image):
            low = scalar.floor(p)
            weight = weight * (p - low if high else 1 - (p - low))
            index = scalar.cast(low, dace.int64) + high
            conditions += [scalar.ge(index, 0), scalar.lt(index, extent)]
            places.append(scalar.minimum(scalar.maximum(index, 0), extent - 1))
        value = scalar.load(x, *lead, *places)
        for condition in conditions:
            value = scalar.select(condition, value, 0)
        total = total + weight * value
    return total


@supports("DeformConv")
def why_not_deformable(graph: Graph, node: Operator) -> str | None:
    x, w = map(graph.shape, graph.operands(node, 2))
    if not 3 <= len(x) == len(w) <= 5:
        return f"shapes {x} and {w}; expected 1 to 3 spatial dimensions in both"
    symbolic = [e for e in (x[1], *w) if not isinstance(e, int)]
    if symbolic:
        return f"extents {symbolic} that are not fixed"
    group, offsets = node.attribute("group", 1), node.attribute("offset_group", 1)
    if group < 1 or w[0] % group or w[1] * group != x[1] or offsets < 1 or x[1] % offsets:
        return f"{group} groups and {offsets} of offsets for {x[1]} channels and a kernel of shape {w}"
    return why_not_steps(node, len(w) - 2)

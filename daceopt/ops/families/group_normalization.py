"""Instance and group normalization: statistics of some channels of an image."""

from __future__ import annotations

import sympy

from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.operands import all_required, require
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.scalar import types
from daceopt.ir.scalar.dims import Shape
from daceopt.ir.scalar.types import DType
from daceopt.ops.core import values
from daceopt.ops.core.kept import deliver, surely_left
from daceopt.ops.core.registry import FLOATS, Names, Operator, again, gradient, keeps, lowering, supports
from daceopt.ops.families.normalization import (
    centre,
    count_of,
    statistics,
    statistics_left,
    sum_like,
    through_statistics,
    unit,
)


def _split_channels(node: Operator, shape: Shape) -> Shape:
    """[N, C, d...] as [N, groups, channels of one, d...]; of instance normalization, each channel is a group."""
    batch, channels, *space = shape
    if node.op_type == "InstanceNormalization":
        return batch, channels, 1, *space
    groups = int(node.attribute("num_groups"))
    return batch, groups, channels // groups, *space


def _of_groups(b: Builder, node: Operator, shape: Shape, name: str) -> str:
    """A scale or bias so that it broadcasts with ``shape``: one per channel or, in opset 18, per group."""
    _, groups, own, *space = shape
    per_group = b.graph.shape(name)[0] == groups and node.since_version < 21
    return str(b.reshape(name, (groups, 1 if per_group else own, *[1] * len(space))))


@lowering("InstanceNormalization", "GroupNormalization", types=FLOATS)
def group_normalization(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    """Outputs: the normalized array and (optional, beyond the standard) mean and inverse deviation of each group."""
    x = require(inputs, 0)
    shape = _split_channels(node, b.graph.shape(x))
    grouped = b.reshape(x, shape)
    centre, inverse = statistics(b, grouped, range(2, len(shape)), node)
    _scale(b, node, (grouped, centre, inverse), inputs, outputs[0])
    deliver(b, centre, values.at(outputs, 1))
    deliver(b, inverse, values.at(outputs, 2))


def _scale(b: Builder, node: Operator, normal: tuple[str, str, str], inputs: Names, out: str | None) -> None:
    x, *rest = all_required(inputs, 3)
    scale, bias = (_of_groups(b, node, b.graph.shape(normal[0]), n) for n in rest)
    y = b.elementwise(lambda v, m, r, s, c: (v - m) * r * s + c, *normal, scale, bias, label="group_norm")
    b.reshape(y, b.graph.shape(x), out=out)


@supports("GroupNormalization")
def why_not_in_groups(graph: Graph, node: Operator) -> str | None:
    """Groups of no channels, or of unlike numbers of them, have no statistics."""
    groups, channels = int(node.attribute("num_groups")), graph.shape(graph.operand(node, 0))[1]
    if groups > 0 and channels % groups == 0:
        return None
    return f"num_groups {groups} of {channels} channels; expected a number that divides them"


@keeps("InstanceNormalization", "GroupNormalization")
def group_statistics(graph: Graph, node: Operator) -> dict[int, tuple[Shape, DType]]:
    x = graph.operand(node, 0)
    kind = _split_channels(node, graph.shape(x))[:2], types.compute_type(graph.dtype(x))
    return {1: kind, 2: kind}


@again("InstanceNormalization", "GroupNormalization")
def group_normalization_again(b: Builder, node: Operator, inputs: Names, outputs: Names, out: str) -> None:
    x = require(inputs, 0)
    grouped = b.reshape(x, _split_channels(node, b.graph.shape(x)))
    shape = b.graph.shape(grouped)
    centre, inverse = surely_left(b, outputs, (1, 2), (*shape[:2], *[1] * (len(shape) - 2)))
    _scale(b, node, (grouped, centre, inverse), inputs, out)


@gradient("InstanceNormalization", "GroupNormalization")
def group_normalization_gradient(
    b: Builder, node: Operator, inputs: Names, outputs: Names, grads_out: Names, needs_grad: list[bool]
) -> Names:
    """As layer normalization. Sums over the elements of each channel serve the gradients of all operands."""
    x, scale, dy = require(inputs, 0), require(inputs, 1), grads_out[0]
    result: Names = [None] * len(inputs)
    shape = _split_channels(node, b.graph.shape(x))
    grouped, axes = b.reshape(x, shape), range(2, len(shape))
    normal = (grouped, *statistics_left(b, grouped, axes, node, outputs))
    parts = through_statistics(b, normal, grads_out[1:], axes) if needs_grad[0] else []
    if dy is not None:
        parts += _through_groups(b, normal, b.reshape(dy, shape), (node, scale), needs_grad, result)
    if parts:
        dx = b.elementwise(lambda *p: sympy.Add(*p), *parts) if len(parts) > 1 else parts[0]
        result[0] = b.reshape(dx, b.graph.shape(x))
    return result


def _through_groups(
    b: Builder,
    normal: tuple[str, str, str],
    dy: str,
    scaled: tuple[Operator, str],
    needs_grad: list[bool],
    result: Names,
) -> list[str]:
    """The gradient by what is normalized, where it is wanted; those of scale and bias are put into ``result``."""
    (node, scale), shape = scaled, b.graph.shape(normal[0])
    factor = _of_groups(b, node, shape, scale)
    space = range(3, len(shape))
    dtype = types.compute_type(b.graph.dtype(dy))
    sum_g = b.reduce("sum", None, dy, axes=space, keepdims=True, dtype=dtype)
    sum_gn = b.reduce("sum", lambda g, *n: g * unit(*n), dy, *normal, axes=space, keepdims=True, dtype=dtype)
    for position, total in ((1, sum_gn), (2, sum_g)):
        if needs_grad[position]:
            own = (shape[1], b.graph.shape(factor)[1], *[1] * len(space))
            result[position] = b.reshape(sum_like(b, None, total, like=scale, shape=own), b.graph.shape(scale))
    if not needs_grad[0]:
        return []
    n = count_of(b, normal[0], range(2, len(shape)))
    mean_g, mean_gn = (
        b.elementwise(lambda t: t / n, b.reduce("sum", lambda t, s: t * s, total, factor, axes=[2], keepdims=True))
        for total in (sum_g, sum_gn)
    )
    return [centre(b, normal, (dy, factor), (mean_g, mean_gn))]

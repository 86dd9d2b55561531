"""Normalizations: where they have a mean, that first, then the variance of the centred values.

What is differentiated leaves its statistics in memory, as PyTorch's do: computing them again reads all of the input.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import sympy

from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.operands import all_required, require
from daceopt.ir.nodes.broadcasting import sum_to
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.scalar import scalar, types
from daceopt.ir.scalar.dims import Shape
from daceopt.ir.scalar.types import DType
from daceopt.ops.core import values
from daceopt.ops.core.kept import deliver, kept_statistics, surely_left
from daceopt.ops.core.registry import FLOATS, Names, Operator, again, gradient, keeps, lowering, supports
from daceopt.ops.families.convolution import per_channel
from daceopt.ops.families.moments import moments
from daceopt.ops.families.reduction import element_count, mean


def _inverse_deviation(b: Builder, variance: str, node: Operator) -> str:
    epsilon = sympy.Float(node.attribute("epsilon", 1e-5))
    return str(b.elementwise(lambda v: 1 / sympy.sqrt(v + epsilon), variance, label="inverse_deviation"))


def statistics(b: Builder, x: str, axes: Sequence[int], node: Operator) -> tuple[str, str]:
    """Mean and inverse standard deviation of ``x`` over ``axes``, which stay as extents of 1."""
    centre, variance = moments(b, x, axes)
    return centre, _inverse_deviation(b, variance, node)


def _axes(graph: Graph, node: Operator, x: str) -> tuple[int, ...]:
    """All axes from ``axis`` on."""
    rank = len(graph.shape(x))
    return tuple(range(node.attribute("axis", -1) % rank, rank))


def _row_statistics(count: int) -> Callable[[Graph, Operator], dict[int, tuple[Shape, DType]]]:
    """``count`` statistics behind the first output, over all axes from ``axis`` on."""

    def keep(graph: Graph, node: Operator) -> dict[int, tuple[Shape, DType]]:
        x = graph.operand(node, 0)
        first, shape = _axes(graph, node, x)[0], graph.shape(x)
        kind = (*shape[:first], *[1] * (len(shape) - first)), types.compute_type(graph.dtype(x))
        return dict.fromkeys(range(1, count + 1), kind)

    return keep


def _reduced_shape(b: Builder, x: str, axes: Sequence[int]) -> Shape:
    return tuple(1 if k in axes else n for k, n in enumerate(b.graph.shape(x)))


def statistics_left(b: Builder, x: str, axes: Sequence[int], node: Operator, outputs: Names) -> tuple[str, str]:
    """Mean and inverse deviation as :func:`statistics` has them, of the forward's outputs where it left them."""
    saved = kept_statistics(b, x, outputs, (1, 2), _reduced_shape(b, x, axes))
    return statistics(b, x, axes, node) if saved is None else (saved[0], saved[1])


# -------------------------------------------------------------------- layer and RMS normalization


@lowering("LayerNormalization", types=FLOATS)
def layer_normalization(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    """Outputs: the normalized array, and (optional) the mean and the inverse standard deviation."""
    x, scale, bias = require(inputs, 0), require(inputs, 1), values.at(inputs, 2)
    centre, inverse = statistics(b, x, _axes(b.graph, node, x), node)
    _layer_scaled(b, (x, centre, inverse), scale, bias, outputs[0])
    deliver(b, centre, values.at(outputs, 1))
    deliver(b, inverse, values.at(outputs, 2))


def _layer_scaled(b: Builder, normal: tuple[str, str, str], scale: str, bias: str | None, out: str | None) -> None:
    def fn(v: sympy.Expr, m: sympy.Expr, r: sympy.Expr, s: sympy.Expr, *c: sympy.Expr) -> sympy.Expr:
        return sympy.Add((v - m) * r * s, *c)

    b.elementwise(fn, *normal, scale, *([bias] if bias else []), out=out, label="layer_norm")


keeps("LayerNormalization")(_row_statistics(2))


@again("LayerNormalization")
def layer_normalization_again(b: Builder, node: Operator, inputs: Names, outputs: Names, out: str) -> None:
    x, scale = all_required(inputs[:2])
    centre, inverse = surely_left(b, outputs, (1, 2), _reduced_shape(b, x, _axes(b.graph, node, x)))
    _layer_scaled(b, (x, centre, inverse), scale, values.at(inputs, 2), out)


@gradient("LayerNormalization")
def layer_normalization_gradient(
    b: Builder, node: Operator, inputs: Names, outputs: Names, grads_out: Names, needs_grad: list[bool]
) -> Names:
    """With n the normalized values and g = dy * scale: dx = r (g - mean(g) - n mean(g n)), and through the statistics
    (dm - dr r r n) / count."""
    x, scale, dy = require(inputs, 0), require(inputs, 1), grads_out[0]
    result: Names = [None] * len(inputs)
    axes = _axes(b.graph, node, x)
    centre, inverse = statistics_left(b, x, axes, node, outputs)
    if needs_grad[0]:
        parts = [] if dy is None else [_centred_gradient(b, (x, centre, inverse), (dy, scale), axes)]
        parts += through_statistics(b, (x, centre, inverse), grads_out[1:], axes)
        result[0] = b.elementwise(lambda *p: sympy.Add(*p), *parts) if len(parts) > 1 else next(iter(parts), None)
    if dy is None:
        return result
    if needs_grad[1]:
        result[1] = sum_like(b, lambda g, *n: g * unit(*n), dy, x, centre, inverse, like=scale)
    if len(inputs) > 2 and inputs[2] is not None and needs_grad[2]:
        result[2] = sum_like(b, None, dy, like=inputs[2])
    return result


def unit(v: sympy.Expr, m: sympy.Expr, r: sympy.Expr) -> sympy.Expr:
    """A normalized value. It is computed where it is read: an array of them would be as large as that of ``v``."""
    return (v - m) * r


def through_statistics(
    b: Builder, normal: tuple[str, str, str], grads: Sequence[str | None], axes: Sequence[int]
) -> list[str]:
    """Gradients by x through the mean and the inverse deviation that were returned."""
    x, _, inverse = normal
    count, dtype = count_of(b, x, axes), b.graph.dtype(x)
    forms = (lambda g, v, m, r: g / count, lambda g, v, m, r: -g * r * r * unit(v, m, r) / count)
    shape = b.graph.shape(inverse)
    return [
        str(b.elementwise(fn, b.reshape(b.cast(g, dtype), shape), *normal, label="statistics_grad"))
        for fn, g in zip(forms, grads)
        if g is not None
    ]


def _centred_gradient(b: Builder, normal: tuple[str, str, str], scaled: tuple[str, str], axes: Sequence[int]) -> str:
    """r (g - mean(g) - n mean(g n)) of g = dy * scale"""
    mean_g = mean(b, lambda d, s: d * s, *scaled, axes=axes, keepdims=True)
    mean_gn = mean(b, lambda d, s, *n: d * s * unit(*n), *scaled, *normal, axes=axes, keepdims=True)
    return centre(b, normal, scaled, (mean_g, mean_gn))


def centre(b: Builder, normal: tuple[str, str, str], scaled: tuple[str, str], means: tuple[str, str]) -> str:
    def fn(
        d: sympy.Expr, s: sympy.Expr, v: sympy.Expr, m: sympy.Expr, r: sympy.Expr, u: sympy.Expr, w: sympy.Expr
    ) -> sympy.Expr:
        return r * (d * s - u - unit(v, m, r) * w)

    return str(b.elementwise(fn, *scaled, *normal, *means, label="norm_grad"))


def sum_like(
    b: Builder, fn: Callable[..., sympy.Expr] | None, *arrays: str, like: str, shape: Shape | None = None
) -> str:
    return sum_to(b, fn, *arrays, shape=b.graph.shape(like) if shape is None else shape, dtype=b.graph.dtype(like))


@lowering("RMSNormalization", types=FLOATS)
def rms_normalization(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    """Outputs: the normalized array and (optional, beyond the standard) the inverse of the root."""
    x, scale = require(inputs, 0), require(inputs, 1)
    inverse = _inverse_deviation(b, _mean_square(b, x, _axes(b.graph, node, x)), node)
    _root_scaled(b, x, inverse, scale, outputs[0])
    deliver(b, inverse, values.at(outputs, 1))


def _mean_square(b: Builder, x: str, axes: Sequence[int]) -> str:
    return mean(b, lambda v: v * v, x, axes=axes, keepdims=True)


def _root_scaled(b: Builder, x: str, inverse: str, scale: str, out: str | None) -> None:
    b.elementwise(lambda v, r, s: v * r * s, x, inverse, scale, out=out, label="rms_norm")


keeps("RMSNormalization")(_row_statistics(1))


@again("RMSNormalization")
def rms_normalization_again(b: Builder, node: Operator, inputs: Names, outputs: Names, out: str) -> None:
    x, scale = all_required(inputs[:2])
    (inverse,) = surely_left(b, outputs, (1,), _reduced_shape(b, x, _axes(b.graph, node, x)))
    _root_scaled(b, x, inverse, scale, out)


@gradient("RMSNormalization")
def rms_normalization_gradient(
    b: Builder, node: Operator, inputs: Names, outputs: Names, grads_out: Names, needs_grad: list[bool]
) -> Names:
    """With n the normalized values and g = dy * scale: dx = r (g - n mean(g n)), and through r: -dr r r n / count."""
    x, scale, dy = require(inputs, 0), require(inputs, 1), grads_out[0]
    axes = _axes(b.graph, node, x)
    saved = kept_statistics(b, x, outputs, (1,), _reduced_shape(b, x, axes))
    inverse = _inverse_deviation(b, _mean_square(b, x, axes), node) if saved is None else saved[0]
    result: Names = [None] * len(inputs)
    if needs_grad[0] and dy is not None:
        mean_gn = mean(b, lambda d, s, v, r: d * s * (v * r), dy, scale, x, inverse, axes=axes, keepdims=True)

        def fn(d: sympy.Expr, s: sympy.Expr, v: sympy.Expr, r: sympy.Expr, w: sympy.Expr) -> sympy.Expr:
            return r * (d * s - (v * r) * w)

        result[0] = b.elementwise(fn, dy, scale, x, inverse, mean_gn, label="norm_grad")
    dr = values.at(grads_out, 1)
    if needs_grad[0] and dr is not None:
        count = count_of(b, x, axes)
        dr = b.reshape(b.cast(dr, b.graph.dtype(x)), b.graph.shape(inverse))
        through = b.elementwise(lambda g, v, r: -g * r * r * (v * r) / count, dr, x, inverse, label="statistics_grad")
        result[0] = _both(b, result[0], through)
    if needs_grad[1] and dy is not None:
        result[1] = sum_like(b, lambda d, v, r: d * (v * r), dy, x, inverse, like=scale)
    return result


def count_of(b: Builder, x: str, axes: Sequence[int]) -> sympy.Expr:
    """How many elements a statistic is made of, in the type in which it is divided."""
    extent = element_count(b.graph, x, axes)
    return extent if extent.is_Integer else scalar.cast(extent, types.compute_type(b.graph.dtype(x)))


# -------------------------------------------------------------------- batch normalization

_MOMENTS = (3, 5)  # the outputs with mean and inverse deviation of the batch


def _training(node: Operator) -> bool:
    """From opset 14 on by an attribute, before that by the model's naming outputs other than Y, read or not."""
    if node.since_version < 14:
        return len(node.output_connectors) > 1 and not node.attribute("is_test", 0)
    return bool(node.attribute("training_mode", 0))


def _batch_axes(node: Operator, rank: int) -> tuple[int, ...]:
    """What the statistics are over: all but channels, or (``spatial=0``, up to opset 8) the batch alone."""
    return tuple(k for k in range(rank) if k != 1) if node.attribute("spatial", 1) else (0,)


def _statistic(b: Builder, node: Operator, name: str, rank: int) -> str:
    """A scale, bias or statistic so that it broadcasts with x; without ``spatial`` there is one for each element."""
    return per_channel(b, name, rank) if node.attribute("spatial", 1) else b.unsqueeze(name, [0])


@lowering("BatchNormalization", types=FLOATS)
def batch_normalization(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    """Inference: the running statistics. Training: the batch's, and both running statistics move towards them.

    As in ONNX, the running variance moves towards the biased variance of the batch. Up to opset 13, outputs 3 and 4 are
    the mean and the variance of the batch; 5, beyond the standard, is the inverse deviation.
    """
    x, *rest = all_required(inputs)
    rank, training = len(b.graph.shape(x)), _training(node)
    scale, bias, running_mean, running_var = (_statistic(b, node, n, rank) for n in rest)
    centre, variance = moments(b, x, _batch_axes(node, rank)) if training else (running_mean, running_var)
    inverse = _inverse_deviation(b, variance, node)
    _scale(b, (x, centre, inverse), scale, bias, outputs[0])
    if training:
        _move(b, node, rest[2], centre, values.at(outputs, 1))
        _move(b, node, rest[3], variance, values.at(outputs, 2))
        deliver(b, centre, values.at(outputs, 3))
        deliver(b, variance, values.at(outputs, 4))
        deliver(b, inverse, values.at(outputs, 5))


def _scale(b: Builder, normal: tuple[str, str, str], scale: str, bias: str, out: str | None) -> None:
    b.elementwise(lambda v, m, r, s, c: (v - m) * (r * s) + c, *normal, scale, bias, out=out, label="batch_norm")


@again("BatchNormalization")
def batch_normalization_again(b: Builder, node: Operator, inputs: Names, outputs: Names, out: str) -> None:
    x, scale, bias = all_required(inputs[:3])
    rank = len(b.graph.shape(x))
    centre, inverse = surely_left(b, outputs, _MOMENTS, _reduced_shape(b, x, _batch_axes(node, rank)))
    _scale(b, (x, centre, inverse), _statistic(b, node, scale, rank), _statistic(b, node, bias, rank), out)


def _move(b: Builder, node: Operator, running: str, batch: str, out: str | None) -> None:
    """running * momentum + batch * (1 - momentum)"""
    if out is None:
        return
    momentum = sympy.Float(node.attribute("momentum", 0.9))
    flat = b.reshape(batch, b.graph.shape(running))
    b.elementwise(lambda r, v: r * momentum + v * (1 - momentum), running, flat, out=out, label="running_statistics")


@supports("BatchNormalization")
def why_not_batch_normalization(graph: Graph, node: Operator) -> str | None:
    if not _training(node) and any(graph.outputs_of(node)[1:]):
        return "running statistics as outputs without training_mode=1"
    return None


@keeps("BatchNormalization")
def batch_moments(graph: Graph, node: Operator) -> dict[int, tuple[Shape, DType]]:
    """The mean, which the operator had as an output up to opset 13, and one beyond the standard."""
    kind = graph.shape(graph.operand(node, 3)), types.compute_type(graph.dtype(graph.operand(node, 0)))
    return dict.fromkeys(_MOMENTS, kind)


@gradient("BatchNormalization", when=_training)
def batch_normalization_gradient(
    b: Builder, node: Operator, inputs: Names, outputs: Names, grads_out: Names, needs_grad: list[bool]
) -> Names:
    """As layer normalization, with the statistics over the batch and the scale for each channel.

    Where statistics that it returns are used further, through them as well: of a mean, dx = d / n; of a variance,
    dx = 2 (x - mean) d / n.
    """
    moments = _batch_moments(b, node, require(inputs, 0), outputs)
    result = _through_output(b, node, inputs, moments, grads_out[0], needs_grad)
    by_statistics = [
        _both(b, _statistic_gradient(b, node, values.at(grads_out, k)), values.at(grads_out, k + 2)) for k in (1, 2)
    ]
    if needs_grad[0] and any(by_statistics):
        through = _through_batch_statistics(b, node, require(inputs, 0), moments[0], by_statistics)
        result[0] = _both(b, result[0], through)
    if needs_grad[0] and (by_inverse := values.at(grads_out, 5)) is not None:
        axes = _batch_axes(node, len(b.graph.shape(require(inputs, 0))))
        (through,) = through_statistics(b, (require(inputs, 0), *moments), (None, by_inverse), axes)
        result[0] = _both(b, result[0], through)
    for k, g in ((3, values.at(grads_out, 1)), (4, values.at(grads_out, 2))):
        if needs_grad[k] and g is not None:
            momentum = sympy.Float(node.attribute("momentum", 0.9))
            result[k] = b.elementwise(lambda v, m=momentum: v * m, g)
    return result


def _batch_moments(b: Builder, node: Operator, x: str, outputs: Names) -> tuple[str, str]:
    """Mean and inverse deviation of the batch, of the forward's outputs where it left them."""
    axes = _batch_axes(node, len(b.graph.shape(x)))
    saved = kept_statistics(b, x, outputs, _MOMENTS, _reduced_shape(b, x, axes))
    return statistics(b, x, axes, node) if saved is None else (saved[0], saved[1])


def _both(b: Builder, one: str | None, other: str | None) -> str | None:
    """The sum of two contributions."""
    return str(b.elementwise(lambda u, v: u + v, one, other)) if one and other else one or other


def _statistic_gradient(b: Builder, node: Operator, g: str | None) -> str | None:
    """The gradient of a batch's statistic, from that of the running one which moved towards it."""
    share = 1 - sympy.Float(node.attribute("momentum", 0.9))
    return None if g is None else str(b.elementwise(lambda v: v * share, g))


def _through_batch_statistics(
    b: Builder, node: Operator, x: str, centre: str, grads: Sequence[str | None]
) -> str | None:
    """The gradient by x of the batch's mean and variance, of which ``grads`` are given."""
    rank, dtype = len(b.graph.shape(x)), b.graph.dtype(x)
    n = count_of(b, x, _batch_axes(node, rank))
    forms = (lambda g, v, m: g / n, lambda g, v, m: 2 * (v - m) * g / n)
    parts: Names = [None, None]
    for k, g in enumerate(grads):
        if g is not None:
            parts[k] = b.elementwise(forms[k], _statistic(b, node, b.cast(g, dtype), rank), x, centre)
    return _both(b, parts[0], parts[1])


def _through_output(
    b: Builder, node: Operator, inputs: Names, moments: tuple[str, str], dy: str | None, needs_grad: list[bool]
) -> Names:
    result: Names = [None] * len(inputs)
    if dy is None:
        return result
    x, scale = require(inputs, 0), require(inputs, 1)
    axes = _batch_axes(node, len(b.graph.shape(x)))
    centre, inverse = moments
    d_bias = b.reduce("sum", None, dy, axes=axes, keepdims=True)
    d_scale = b.reduce("sum", lambda g, *n: g * unit(*n), dy, x, centre, inverse, axes=axes, keepdims=True)
    if needs_grad[0]:
        result[0] = _batch_input_gradient(
            b,
            (dy, x, centre, inverse, _statistic(b, node, scale, len(b.graph.shape(x)))),
            (d_bias, d_scale),
            element_count(b.graph, x, axes),
        )
    for position, total in ((1, d_scale), (2, d_bias)):
        if needs_grad[position]:
            result[position] = b.reshape(total, b.graph.shape(scale))
    return result


def _batch_input_gradient(b: Builder, arrays: tuple[str, ...], sums: tuple[str, str], count: sympy.Expr) -> str:
    """scale * r (dy - sum(dy)/n - unit sum(dy unit)/n): the sums serve the gradients of bias and scale too."""
    n = count if count.is_Integer else scalar.cast(count, b.graph.dtype(arrays[0]))

    def fn(
        g: sympy.Expr, v: sympy.Expr, m: sympy.Expr, r: sympy.Expr, s: sympy.Expr, sum_g: sympy.Expr, sum_gu: sympy.Expr
    ) -> sympy.Expr:
        return (s * r) * (g - sum_g / n - unit(v, m, r) * (sum_gu / n))

    return str(b.elementwise(fn, *arrays, *sums, label="norm_grad"))


# -------------------------------------------------------------------- over all of an image


@supports("MeanVarianceNormalization")
def why_not_mean_variance(graph: Graph, node: Operator) -> str | None:
    rank, axes = len(graph.shape(graph.operand(node, 0))), node.attribute("axes") or (0, 2, 3)
    if len({a % rank for a in axes if -rank <= a < rank}) != len(axes):
        return f"axes {list(axes)} of an input of rank {rank}: expected each once"
    return None


@lowering("MeanVarianceNormalization", types=FLOATS)
def mean_variance_normalization(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    """(x - mean) / (deviation + 1e-9), as the function body of the standard has it."""
    x = require(inputs, 0)
    rank = len(b.graph.shape(x))
    axes = sorted({a % rank for a in node.attribute("axes") or (0, 2, 3)})
    centre, variance = moments(b, x, axes)
    b.elementwise(
        lambda v, m, s: (v - m) / (sympy.sqrt(s) + sympy.Float(1e-9)),
        x,
        centre,
        variance,
        out=outputs[0],
        label="mean_variance",
    )


# -------------------------------------------------------------------- p-norms


def power_term(p: int) -> Callable[[sympy.Expr], sympy.Expr]:
    """|x|^p, the term of a p-norm's sum."""
    if p == 1:
        return sympy.Abs
    if p == 2:
        return lambda v: v * v
    return lambda v: scalar.power(v if p % 2 == 0 else sympy.Abs(v), sympy.Integer(p))


def root(p: int) -> Callable[[sympy.Expr], sympy.Expr]:
    """The p-th root of the sum; its derivative at 0 is taken as 0, as PyTorch does for norms."""
    if p == 1:
        return lambda s: s
    if p == 2:
        return lambda s: scalar.select(scalar.eq(s, 0), 0, sympy.sqrt(s))
    return lambda s: scalar.select(scalar.eq(s, 0), 0, scalar.power(s, sympy.Float(1 / p)))


@supports("LpNormalization")
def why_not_norm(graph: Graph, node: Operator) -> str | None:
    p = node.attribute("p", 2)
    return None if p in (1, 2) else f"p = {p}; expected 1 or 2"


@lowering("LpNormalization", types=FLOATS)
def norm_normalization(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    """x / |x|_p along an axis; 0 where the norm is 0."""
    x, p = require(inputs, 0), node.attribute("p", 2)
    axis = node.attribute("axis", -1) % len(b.graph.shape(x))
    norm = b.elementwise(root(p), b.reduce("sum", power_term(p), x, axes=[axis], keepdims=True), label="norm")
    b.elementwise(
        lambda v, n: scalar.select(scalar.eq(n, 0), 0, v / n), x, norm, out=outputs[0], label="norm_normalization"
    )

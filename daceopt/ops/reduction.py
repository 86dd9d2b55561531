"""Reductions over axes given as an attribute or as an input, and ArgMax and ArgMin."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import dace
import sympy

from daceopt.ir import scalar, types
from daceopt.ir.builder import Builder
from daceopt.ir.graph import Graph
from daceopt.ops import values
from daceopt.ops.elementwise import alias
from daceopt.ops.registry import ANY, FLOATS, NUMBERS, Names, Operator, gradient, lowering, supports

Scalar = Callable[..., Any]


def reduced_axes(graph: Graph, node: Operator, inputs: Names) -> tuple[int, ...] | None:
    """Axes, non-negative; None when ``noop_with_empty_axes`` makes the operator point-wise."""
    rank = len(graph.shape(str(inputs[0])))
    axes = values.integers(graph, node, inputs, "axes", 1)
    if axes:
        return tuple(sorted({a % rank for a in axes}))
    return None if node.attribute("noop_with_empty_axes", 0) else tuple(range(rank))


def _reduction(
    op_type: str, kind: str, before: Scalar | None = None, after: Scalar | None = None, accepted: Any = NUMBERS
) -> None:
    """Register ``after(reduce(kind, before(x)))``."""

    def rule(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
        x, out = str(inputs[0]), str(outputs[0])
        axes = reduced_axes(b.graph, node, inputs)
        if axes is None:
            return _pointwise(b, before, after, x, out)
        b.label = op_type.lower()
        keep = bool(node.attribute("keepdims", 1))
        if after is None:
            b.reduce(kind, before, x, axes=axes, keepdims=keep, out=out)
        else:
            b.elementwise(after, b.reduce(kind, before, x, axes=axes, keepdims=keep, dtype=b.graph.dtype(x)), out=out)
        return None

    lowering(op_type, types=accepted)(rule)
    supports(op_type)(lambda graph, node: values.unknown(graph, node, 1))


def _pointwise(b: Builder, before: Scalar | None, after: Scalar | None, x: str, out: str) -> None:
    if before is None and after is None:
        return alias(b, x, out)
    first, last = before or (lambda v: v), after or (lambda v: v)
    b.elementwise(lambda v: last(first(v)), x, out=out)
    return None


def _square(x: Any) -> Any:
    return x * x


_reduction("ReduceSum", "sum")
_reduction("ReduceProd", "prod")
_reduction("ReduceL1", "sum", sympy.Abs)
_reduction("ReduceL2", "sum", _square, sympy.sqrt, accepted=FLOATS)
_reduction("ReduceSumSquare", "sum", _square)
_reduction("ReduceLogSum", "sum", None, sympy.log, accepted=FLOATS)
_reduction("ReduceMax", "max", accepted=ANY)
_reduction("ReduceMin", "min", accepted=ANY)


def element_count(graph: Graph, x: str, axes: Sequence[int]) -> Any:
    """Number of elements of ``x`` along ``axes``."""
    return sympy.Mul(*(graph.shape(x)[a] for a in axes))


def mean(
    b: Builder, fn: Scalar | None, *arrays: str, axes: Sequence[int], keepdims: bool, out: str | None = None
) -> str:
    """Mean of ``fn(*symbols)`` over ``axes`` of the broadcast shape, which is the first array's."""
    dtype = b.graph.dtype(arrays[0])
    total = b.reduce("sum", fn, *arrays, axes=axes, keepdims=keepdims, dtype=dtype)
    count = element_count(b.graph, arrays[0], axes)
    if not types.is_float(dtype):
        return str(b.elementwise(lambda s: scalar.idiv(s, count), total, dtype=dtype, out=out))
    divisor = count if count.is_Integer else scalar.cast(count, dtype)
    return str(b.elementwise(lambda s: s / divisor, total, dtype=dtype, out=out))


@lowering("ReduceMean", types=NUMBERS)
def reduce_mean(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    """Integers truncate, as ONNX Runtime does."""
    x, axes = str(inputs[0]), reduced_axes(b.graph, node, inputs)
    if axes is None:
        return alias(b, x, outputs[0])
    mean(b, None, x, axes=axes, keepdims=bool(node.attribute("keepdims", 1)), out=outputs[0])
    return None


@lowering("ReduceLogSumExp", types=FLOATS)
def reduce_log_sum_exp(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    """The largest element is subtracted where it is finite."""
    x, axes = str(inputs[0]), reduced_axes(b.graph, node, inputs)
    if axes is None:
        return alias(b, x, outputs[0])
    keep = bool(node.attribute("keepdims", 1))
    top = b.reduce("max", None, x, axes=axes, keepdims=True)
    safe = b.elementwise(lambda m: scalar.select(scalar.isinf(m), 0, m), top)
    total = b.reduce("sum", lambda v, m: sympy.exp(v - m), x, safe, axes=axes, keepdims=keep)
    top = safe if keep else b.squeeze(safe, axes)
    b.elementwise(lambda s, m: sympy.log(s) + m, total, top, out=outputs[0])
    return None


for _name in ("ReduceMean", "ReduceLogSumExp"):
    supports(_name)(lambda graph, node: values.unknown(graph, node, 1))


def _kept(b: Builder, node: Operator, name: str, axes: Sequence[int]) -> str:
    """A result or its gradient with the reduced axes as extents of 1."""
    return name if node.attribute("keepdims", 1) else b.unsqueeze(name, axes)


@gradient("ReduceMax", "ReduceMin")
def extremum_gradient(
    b: Builder, node: Operator, inputs: Names, outputs: Names, grads_out: Names, wanted: list[bool]
) -> Names:
    """Equal extrema share the gradient evenly, as in ``torch.amax``."""
    absent: Names = [None] * len(inputs)
    axes = reduced_axes(b.graph, node, inputs)
    if grads_out[0] is None or axes is None:
        return [grads_out[0], *absent[1:]]
    x, y, dy = str(inputs[0]), _kept(b, node, str(outputs[0]), axes), _kept(b, node, grads_out[0], axes)
    count = b.reduce(
        "sum", lambda v, m: scalar.select(scalar.eq(v, m), 1, 0), x, y, axes=axes, keepdims=True, dtype=b.graph.dtype(x)
    )
    return [b.elementwise(lambda v, m, g, n: scalar.select(scalar.eq(v, m), g / n, 0), x, y, dy, count), *absent[1:]]


@gradient("ReduceLogSumExp")
def log_sum_exp_gradient(
    b: Builder, node: Operator, inputs: Names, outputs: Names, grads_out: Names, wanted: list[bool]
) -> Names:
    """dx = exp(x - y) dy"""
    absent: Names = [None] * len(inputs)
    axes = reduced_axes(b.graph, node, inputs)
    if grads_out[0] is None or axes is None:
        return [grads_out[0], *absent[1:]]
    y, dy = _kept(b, node, str(outputs[0]), axes), _kept(b, node, grads_out[0], axes)
    return [b.elementwise(lambda v, m, g: sympy.exp(v - m) * g, str(inputs[0]), y, dy), *absent[1:]]


def _arg(op_type: str, kind: str) -> None:
    """Register ArgMax or ArgMin: the extremum, then the first (or last) index where it stands; NaN is an extremum."""

    def rule(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
        x, out = str(inputs[0]), str(outputs[0])
        shape = b.graph.shape(x)
        axis = node.attribute("axis", 0) % len(shape)
        best = b.reduce(kind, None, x, axes=[axis], keepdims=True)
        last = bool(node.attribute("select_last_index", 0))
        place = b.graph.add_array(b.label, shape, dace.int64)
        other = -1 if last else shape[axis]
        b.map(
            shape,
            {"v": (x, lambda *i: i), "m": (best, lambda *i: (*i[:axis], 0, *i[axis + 1 :]))},
            {"out": (place, lambda *i: i)},
            lambda i, v, m: scalar.select(scalar.logical_or(scalar.eq(v, m), scalar.isnan(v)), i[axis], other),
        )
        b.reduce(
            "max" if last else "min", None, place, axes=[axis], keepdims=bool(node.attribute("keepdims", 1)), out=out
        )

    lowering(op_type, types=NUMBERS)(rule)


_arg("ArgMax", "max")
_arg("ArgMin", "min")

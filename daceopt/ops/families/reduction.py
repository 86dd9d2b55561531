"""Reductions over axes given as an attribute or as an input, and ArgMax and ArgMin."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import dace
import sympy

from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.operands import require
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.scalar import scalar, types
from daceopt.ir.scalar.types import DType
from daceopt.ops.core import values
from daceopt.ops.core.registry import BOOL, NUMBERS, Names, Operator, gradient, lowering, supports, without_gradient
from daceopt.ops.families.elementwise import alias

Scalar = Callable[..., sympy.Expr]


def reduced_axes(graph: Graph, node: Operator, inputs: Names) -> tuple[int, ...] | None:
    """Axes, non-negative; None when ``noop_with_empty_axes`` makes the operator point-wise."""
    rank = len(graph.shape(require(inputs, 0)))
    axes = values.integers(graph, node, inputs, "axes", 1)
    if axes:
        return tuple(sorted({a % rank for a in axes if rank}))
    return None if node.attribute("noop_with_empty_axes", 0) else tuple(range(rank))


def _keeps(node: Operator) -> bool:
    """The standard's inference takes any value but 1 for no."""
    return bool(node.attribute("keepdims", 1) == 1)


def _reduction(
    op_type: str,
    kind: str,
    before: Scalar | None = None,
    after: Scalar | None = None,
    accepted: Sequence[DType] = NUMBERS,
) -> None:
    """Register ``after(reduce(kind, before(x)))``."""

    def rule(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
        x, out = require(inputs, 0), require(outputs, 0)
        axes = reduced_axes(b.graph, node, inputs)
        b.label = op_type.lower()
        x = x if after is None else _real(b, x)
        if axes is None:
            return _pointwise(b, before, after, x, out)
        keep = _keeps(node)
        if after is None:
            b.reduce(kind, before, x, axes=axes, keepdims=keep, out=out)
        else:
            b.elementwise(after, b.reduce(kind, before, x, axes=axes, keepdims=keep, dtype=b.graph.dtype(x)), out=out)
        return None

    lowering(op_type, types=accepted)(rule)
    supports(op_type)(lambda graph, node: values.unknown(graph, node, 1))


def _real(b: Builder, x: str) -> str:
    """Integers in double, for functions whose results are rounded towards zero."""
    return x if types.is_float(b.graph.dtype(x)) else b.cast(x, dace.float64)


def _pointwise(b: Builder, before: Scalar | None, after: Scalar | None, x: str, out: str) -> None:
    if before is None and after is None:
        return alias(b, x, out)
    first, last = before or (lambda v: v), after or (lambda v: v)
    b.elementwise(lambda v: last(first(v)), x, out=out)
    return None


def _square(x: sympy.Expr) -> sympy.Expr:
    return x * x


_reduction("ReduceSum", "sum")
_reduction("ReduceProd", "prod")
_reduction("ReduceL1", "sum", sympy.Abs)
_reduction("ReduceL2", "sum", _square, sympy.sqrt)
_reduction("ReduceSumSquare", "sum", _square)
_reduction("ReduceLogSum", "sum", None, sympy.log)
_reduction("ReduceMax", "max", accepted=NUMBERS + BOOL)
_reduction("ReduceMin", "min", accepted=NUMBERS + BOOL)


def element_count(graph: Graph, x: str, axes: Sequence[int]) -> sympy.Expr:
    """Number of elements of ``x`` along ``axes``."""
    return sympy.Mul(*(graph.shape(x)[a] for a in axes))


def mean(
    b: Builder, fn: Scalar | None, *arrays: str, axes: Sequence[int], keepdims: bool, out: str | None = None
) -> str:
    """Mean of ``fn(*symbols)`` over ``axes`` of the broadcast shape, which is the first array's."""
    dtype = types.compute_type(b.graph.dtype(arrays[0]))
    total = b.reduce("sum", fn, *arrays, axes=axes, keepdims=keepdims, dtype=dtype)
    count = element_count(b.graph, arrays[0], axes)
    if count == 0 and types.is_float(dtype):
        return str(b.elementwise(lambda s: s + scalar.nan(), total, dtype=dtype, out=out))
    if not types.is_float(dtype):
        return str(b.elementwise(lambda s: scalar.idiv(s, count), total, dtype=dtype, out=out))
    divisor = count if count.is_Integer else scalar.cast(count, dtype)
    return str(b.elementwise(lambda s: s / divisor, total, dtype=dtype, out=out))


@lowering("ReduceMean", types=NUMBERS)
def reduce_mean(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    """Integers truncate, as ONNX Runtime does."""
    x, axes = require(inputs, 0), reduced_axes(b.graph, node, inputs)
    if axes is None:
        return alias(b, x, outputs[0])
    mean(b, None, x, axes=axes, keepdims=_keeps(node), out=outputs[0])
    return None


@lowering("ReduceLogSumExp", types=NUMBERS)
def reduce_log_sum_exp(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    """The largest element is subtracted where it is finite."""
    x, axes = require(inputs, 0), reduced_axes(b.graph, node, inputs)
    if axes is None:
        return alias(b, x, outputs[0])
    x, keep = _real(b, x), _keeps(node)
    top = b.reduce("max", None, x, axes=axes, keepdims=True)
    safe = b.elementwise(lambda m: scalar.select(scalar.isinf(m), 0, m), top)
    total = b.reduce("sum", lambda v, m: sympy.exp(v - m), x, safe, axes=axes, keepdims=keep)
    top = safe if keep else b.squeeze(safe, axes)
    b.elementwise(lambda s, m: sympy.log(s) + m, total, top, out=outputs[0])
    return None


for _name in ("ReduceMean", "ReduceLogSumExp"):
    supports(_name)(lambda graph, node: values.unknown(graph, node, 1))


def _with_reduced_axes(b: Builder, node: Operator, name: str, axes: Sequence[int]) -> str:
    """A result or its gradient with the reduced axes as extents of 1."""
    return name if _keeps(node) else b.unsqueeze(name, axes)


def _gradient(*op_types: str) -> Callable[[Callable[..., str]], Callable[..., str]]:
    """Register a rule ``(b, x, y, dy, axes) -> dx``; y and dy come with the reduced axes as extents of 1."""

    def register(rule: Callable[..., str]) -> Callable[..., str]:
        @gradient(*op_types)
        def whole(
            b: Builder, node: Operator, inputs: Names, outputs: Names, grads_out: Names, needs_grad: list[bool]
        ) -> Names:
            axes, dy, absent = reduced_axes(b.graph, node, inputs), grads_out[0], [None] * (len(inputs) - 1)
            if dy is None or axes is None:
                return [dy, *absent]
            y, dy = (_with_reduced_axes(b, node, n, axes) for n in (require(outputs, 0), dy))
            return [rule(b, require(inputs, 0), y, dy, axes), *absent]

        return rule

    return register


@_gradient("ReduceMax", "ReduceMin")
def extremum_gradient(b: Builder, x: str, y: str, dy: str, axes: Sequence[int]) -> str:
    """Equal extrema share the gradient evenly, as in ``torch.amax``."""
    count = b.reduce(
        "sum", lambda v, m: scalar.select(scalar.eq(v, m), 1, 0), x, y, axes=axes, keepdims=True, dtype=b.graph.dtype(x)
    )
    return str(b.elementwise(lambda v, m, g, n: scalar.select(scalar.eq(v, m), g / n, 0), x, y, dy, count))


@_gradient("ReduceLogSumExp")
def log_sum_exp_gradient(b: Builder, x: str, y: str, dy: str, axes: Sequence[int]) -> str:
    """dx = exp(x - y) dy"""
    return str(b.elementwise(lambda v, m, g: sympy.exp(v - m) * g, x, y, dy))


def arg_extremum(
    b: Builder,
    kind: str,
    x: str,
    axis: int,
    keepdims: bool,
    last: bool = False,
    out: str | None = None,
    best: str | None = None,
) -> str:
    """The first (or last) index of the ``max`` or ``min`` along ``axis``, int64; NaN is an extremum.

    ``best`` is the extremum itself where it is known already, with an extent of 1 at ``axis``.
    """
    shape = b.graph.shape(x)
    best = best or b.reduce(kind, None, x, axes=[axis], keepdims=True)
    result_shape = (*shape[:axis], *([1] if keepdims else []), *shape[axis + 1 :])
    place = out or b.graph.add_array(b.label, result_shape, dace.int64)
    other = -1 if last else shape[axis]
    b.map(
        shape,
        {"v": (x, lambda *i: i), "m": (best, lambda *i: (*i[:axis], 0, *i[axis + 1 :]))},
        {"out": (place, lambda *i: (*i[:axis], *([0] if keepdims else []), *i[axis + 1 :]), "max" if last else "min")},
        lambda i, v, m: scalar.select(scalar.logical_or(scalar.eq(v, m), scalar.isnan(v)), i[axis], other),
    )
    return place


@lowering("ArgMax", "ArgMin", types=NUMBERS)
def arg(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    """The index of the extremum; among equals the first, or the last with ``select_last_index``."""
    x, axis = require(inputs, 0), node.attribute("axis", 0) % len(b.graph.shape(require(inputs, 0)))
    keepdims, last = _keeps(node), bool(node.attribute("select_last_index", 0))
    arg_extremum(b, "max" if node.op_type == "ArgMax" else "min", x, axis, keepdims, last, outputs[0])


@supports("ArgMax", "ArgMin")
def why_not_arg(graph: Graph, node: Operator) -> str | None:
    shape = graph.shape(graph.operand(node, 0))
    if not shape or shape[node.attribute("axis", 0) % len(shape)] == 0:
        return f"an input of shape {shape}; expected elements along the axis"
    return None


without_gradient("ArgMax", "ArgMin")

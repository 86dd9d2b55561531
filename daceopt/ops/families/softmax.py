"""Softmax, LogSoftmax and Hardmax.

In the soft ones the largest element is subtracted; a row of -inf only gives NaN, as in PyTorch. With our own attribute
``MULTIPLIED`` only products read the weights: those that no sum of products could show are 0.
"""

from __future__ import annotations

from collections.abc import Callable

import sympy

from daceopt.ir.graph.operands import require
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.scalar import scalar
from daceopt.ops.core.registry import FLOATS, Names, Operator, gradient, lowering
from daceopt.ops.families.reduction import arg_extremum, element_count

DOMAIN, GUARDED, MULTIPLIED = "daceopt", "GuardedSoftmax", "only_multiplied"


def _axes(b: Builder, node: Operator, x: str) -> tuple[int, ...]:
    """One axis (default the last); before opset 13, all from ``axis`` (default 1) on."""
    rank = len(b.graph.shape(x))
    flattened = node.since_version < 13
    axis = node.attribute("axis", 1 if flattened else -1) % max(rank, 1)
    return tuple(range(axis, rank)) if flattened else (axis,)


def _exponential(node: Operator) -> Callable[[sympy.Expr], sympy.Expr]:
    return scalar.exp_weight if node.attribute(MULTIPLIED, 0) else sympy.exp


@lowering("Softmax", types=FLOATS)
def softmax(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    x, out = require(inputs, 0), require(outputs, 0)
    axes, exp = _axes(b, node, x), _exponential(node)
    top = b.reduce("max", None, x, axes=axes, keepdims=True, label="softmax_max")
    weight = b.elementwise(lambda v, m: exp(v - m), x, top, label="softmax_exp")
    total = b.reduce("sum", None, weight, axes=axes, keepdims=True, label="softmax_sum")
    b.elementwise(lambda e, s: e / s, weight, total, out=out, label="softmax")


@lowering(GUARDED, domain=DOMAIN, types=FLOATS)
def guarded_softmax(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    """Over the last axis; a row of -inf only gives zeros, and has a gradient of zeros."""
    x, out = require(inputs, 0), require(outputs, 0)
    hidden, exp = -scalar.infinity(), _exponential(node)
    top = b.reduce("max", None, x, axes=(-1,), keepdims=True, label="softmax_max")
    centre = b.elementwise(lambda m: scalar.select(scalar.ne(m, hidden), m, 0), top, label="softmax_centre")
    weight = b.elementwise(lambda v, m: exp(v - m), x, centre, label="softmax_exp")
    total = b.reduce("sum", None, weight, axes=(-1,), keepdims=True, label="softmax_sum")
    b.elementwise(
        lambda e, s, m: scalar.select(scalar.ne(m, hidden), e / s, 0), weight, total, top, out=out, label="softmax"
    )


@lowering("LogSoftmax", types=FLOATS)
def log_softmax(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    x, out = require(inputs, 0), require(outputs, 0)
    axes = _axes(b, node, x)
    top = b.reduce("max", None, x, axes=axes, keepdims=True, label="softmax_max")
    total = b.reduce("sum", lambda v, m: sympy.exp(v - m), x, top, axes=axes, keepdims=True, label="softmax_sum")
    b.elementwise(lambda v, m, s: (v - m) - sympy.log(s), x, top, total, out=out, label="log_softmax")


@lowering("Hardmax", types=FLOATS)
def hardmax(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    """1 at the first of the largest elements, 0 elsewhere."""
    x, out = require(inputs, 0), require(outputs, 0)
    shape, axes = b.graph.shape(x), _axes(b, node, x)
    first, last = axes[0], axes[-1] + 1
    merged = (*shape[:first], element_count(b.graph, x, axes), *shape[last:])
    best = arg_extremum(b, "max", b.reshape(x, merged), first, keepdims=True)
    hot = b.graph.add_array("hardmax", merged, b.graph.dtype(out))
    b.map(
        merged,
        {"k": (best, lambda *i: (*i[:first], 0, *i[first + 1 :]))},
        {"out": (hot, lambda *i: i)},
        lambda i, k: scalar.select(scalar.eq(k, i[first]), 1, 0),
        label="hardmax",
    )
    b.reshape(hot, shape, out=out)


@gradient("Softmax")
def softmax_gradient(
    b: Builder, node: Operator, inputs: Names, outputs: Names, grads_out: Names, needs_grad: list[bool]
) -> Names:
    y = require(outputs, 0)
    return [_through(b, y, require(grads_out, 0), _axes(b, node, y))]


@gradient(GUARDED, domain=DOMAIN)
def guarded_softmax_gradient(
    b: Builder, node: Operator, inputs: Names, outputs: Names, grads_out: Names, needs_grad: list[bool]
) -> Names:
    """As that of Softmax: a row of zeros gives zeros."""
    return [_through(b, require(outputs, 0), require(grads_out, 0), (-1,))]


def _through(b: Builder, y: str, dy: str, axes: tuple[int, ...]) -> str:
    """dx = y (dy - sum(y dy))"""
    total = b.reduce("sum", lambda p, g: p * g, y, dy, axes=axes, keepdims=True, label="softmax_dot")
    return str(b.elementwise(lambda p, g, s: p * (g - s), y, dy, total, label="softmax_grad"))


@gradient("LogSoftmax")
def log_softmax_gradient(
    b: Builder, node: Operator, inputs: Names, outputs: Names, grads_out: Names, needs_grad: list[bool]
) -> Names:
    """dx = dy - exp(y) sum(dy)"""
    y, dy = require(outputs, 0), require(grads_out, 0)
    total = b.reduce("sum", None, dy, axes=_axes(b, node, y), keepdims=True, label="softmax_dot")
    return [b.elementwise(lambda p, g, s: g - sympy.exp(p) * s, y, dy, total, label="log_softmax_grad")]

"""Classification losses: negative log likelihood, and softmax cross entropy in its stable form.

Scores are [N, C, d...], labels [N, d...]. A label out of range fails the run with an IndexError, unless it is ignored.
"""

from __future__ import annotations

from collections.abc import Callable

import sympy

from daceopt.errors import Unsupported
from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.operands import require
from daceopt.ir.nodes.builder import Builder, IndexFunction
from daceopt.ir.scalar import scalar, types
from daceopt.ir.scalar.dims import Shape
from daceopt.ir.scalar.types import DType
from daceopt.ops.core import values
from daceopt.ops.core.kept import deliver, kept_statistics
from daceopt.ops.core.registry import FLOATS, Names, Operator, gradient, keeps, lowering, present, supports

_OPERATORS = ("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss")


@lowering("NegativeLogLikelihoodLoss", types=FLOATS)
def negative_log_likelihood(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    """-x[n, label, d...], weighted by class."""
    _loss(b, node, inputs, require(outputs, 0), lambda x: -x)


@lowering("SoftmaxCrossEntropyLoss", types=FLOATS)
def softmax_cross_entropy(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    """log(sum(exp(x - top))) - (x[label] - top); the second output is the logarithm of the softmax.

    Two more, beyond the standard, are what it is made of: the largest score, and the sum.
    """
    x, log_prob = require(inputs, 0), values.at(outputs, 1)
    top, total = _softmax_parts(b, x)
    deliver(b, top, values.at(outputs, 2))
    deliver(b, total, values.at(outputs, 3))
    if log_prob is not None:
        b.elementwise(lambda v, m, s: (v - m) - sympy.log(s), x, top, total, out=log_prob, label="log_softmax")
    if outputs[0] is not None:
        parts = [b.squeeze(part, [1]) for part in (top, total)]
        _loss(b, node, inputs, outputs[0], lambda x, m, s: sympy.log(s) - (x - m), *parts)


def _softmax_parts(b: Builder, x: str) -> tuple[str, str]:
    """The largest score and the sum of exponentials relative to it, over the classes: [N, 1, d...] each."""
    top = b.reduce("max", None, x, axes=(1,), keepdims=True, label="softmax_max")
    total = b.reduce("sum", lambda v, m: sympy.exp(v - m), x, top, axes=(1,), keepdims=True, label="softmax_sum")
    return top, total


@keeps("SoftmaxCrossEntropyLoss")
def softmax_parts(graph: Graph, node: Operator) -> dict[int, tuple[Shape, DType]]:
    """The largest score and the sum for each label."""
    x = graph.operand(node, 0)
    batch, _, *rest = graph.shape(x)
    kind = (batch, 1, *rest), types.compute_type(graph.dtype(x))
    return {2: kind, 3: kind}


def _loss(b: Builder, node: Operator, inputs: Names, out: str, fn: Callable[..., sympy.Expr], *others: str) -> None:
    """The reduction of ``fn(x at the label's class, others...)`` times the label's weight."""
    reduction = node.attribute("reduction", "mean")
    weights = _weights(b, node, inputs)
    if reduction == "none":
        return _losses(b, node, inputs, weights, out, fn, *others)
    labels = require(inputs, 1)
    each = b.graph.add_array("loss", b.graph.shape(labels), b.graph.dtype(out))
    _losses(b, node, inputs, weights, each, fn, *others)
    axes = tuple(range(len(b.graph.shape(labels))))
    if reduction == "sum":
        b.reduce("sum", None, each, axes=axes, out=out, label="loss")
    else:
        total = b.reduce("sum", None, each, axes=axes, label="loss_sum")
        b.elementwise(lambda s, n: s / n, total, _normaliser(b, labels, weights, out), out=out, label="loss")
    return None


def _losses(
    b: Builder,
    node: Operator,
    inputs: Names,
    weights: str | None,
    out: str,
    fn: Callable[..., sympy.Expr],
    *others: str,
) -> None:
    x, labels = require(inputs, 0), require(inputs, 1)
    reads: dict[str, tuple[str, IndexFunction]] = {
        "x": (x, lambda *i: (None,) * (len(i) + 1)),
        **{f"a{k}": (name, lambda *i: i) for k, name in enumerate([labels, *others, *present([weights])])},
    }

    def value(i: tuple[sympy.Symbol, ...], x: sympy.Expr, a0: sympy.Expr, **rest: sympy.Expr) -> sympy.Expr:
        skip = _is_ignored(node, a0)
        operands = list(rest.values())
        weight = operands.pop() if weights is not None else 1
        result = fn(scalar.load(x, i[0], _class_of(a0, skip), *i[1:]), *operands) * weight
        return result if skip is None else scalar.select(skip, 0, result)

    b.map(b.graph.shape(labels), reads, {"out": (out, lambda *i: i)}, value, label="loss")


def _is_ignored(node: Operator, label: sympy.Expr) -> sympy.Expr | None:
    ignored = node.attribute("ignore_index")
    return None if ignored is None else scalar.eq(label, ignored)


def _class_of(label: sympy.Expr, skip: sympy.Expr | None) -> sympy.Expr:
    return label if skip is None else scalar.select(skip, 0, label)


def _weights(b: Builder, node: Operator, inputs: Names) -> str | None:
    """Each label's weight, 0 where it is ignored; None when all are 1."""
    labels, class_weights = require(inputs, 1), values.at(inputs, 2)
    if class_weights is None and node.attribute("ignore_index") is None:
        return None
    dtype = b.graph.dtype(require(inputs, 0))
    weights = b.graph.add_array("loss_weights", b.graph.shape(labels), dtype)
    reads: dict[str, tuple[str, IndexFunction]] = {"t": (labels, lambda *i: i)}
    if class_weights is not None:
        reads["w"] = (class_weights, lambda *i: (None,))

    def value(i: tuple[sympy.Symbol, ...], t: sympy.Expr, w: sympy.Expr | None = None) -> sympy.Expr:
        skip = _is_ignored(node, t)
        weight = 1 if w is None else scalar.load(w, _class_of(t, skip))
        return scalar.cast(weight if skip is None else scalar.select(skip, 0, weight), dtype)

    b.map(b.graph.shape(labels), reads, {"out": (weights, lambda *i: i)}, value, label="loss_weights")
    return weights


def _normaliser(b: Builder, labels: str, weights: str | None, like: str) -> str:
    """What the mean divides by: the sum of the weights."""
    shape, dtype = b.graph.shape(labels), b.graph.dtype(like)
    if weights is not None:
        return b.reduce("sum", None, weights, axes=tuple(range(len(shape))), label="loss_count")
    count = b.graph.add_array("loss_count", (), dtype)
    b.map((), {}, {"out": (count, lambda: ())}, lambda i: scalar.cast(b.graph.size(labels), dtype), label="loss_count")
    return count


# -------------------------------------------------------------------- gradients


def _refuse_weights(node: Operator, needs_grad: list[bool]) -> None:
    """As PyTorch does."""
    if any(needs_grad[2:]):
        raise Unsupported(f"{node.op_type} has no gradient by the weights of its classes")


@gradient("NegativeLogLikelihoodLoss")
def negative_log_likelihood_gradient(
    b: Builder, node: Operator, inputs: Names, outputs: Names, grads_out: Names, needs_grad: list[bool]
) -> Names:
    """-1 at the label's class, scaled."""
    _refuse_weights(node, needs_grad)
    nothing: Names = [None] * len(inputs)
    if grads_out[0] is None or not needs_grad[0]:
        return nothing
    dx = b.graph.add_array("loss_grad", b.graph.shape(require(inputs, 0)), b.graph.dtype(require(inputs, 0)))
    scale = _scale(b, node, inputs, grads_out[0])
    reads = {"t": (require(inputs, 1), _without_class), "scale": (scale, _without_class)}
    b.map(b.graph.shape(dx), reads, {"out": (dx, lambda *i: i)}, _minus_one_hot, label="loss_grad")
    return [dx, *nothing[1:]]


@gradient("SoftmaxCrossEntropyLoss")
def softmax_cross_entropy_gradient(
    b: Builder, node: Operator, inputs: Names, outputs: Names, grads_out: Names, needs_grad: list[bool]
) -> Names:
    """(softmax - 1 at the label's class), scaled; and what comes through the logarithms of the softmax.

    Through the sum that was kept: exp(x - top). Nothing depends on the largest score: what passes through it cancels.
    """
    _refuse_weights(node, needs_grad)
    nothing: Names = [None] * len(inputs)
    by_loss, by_log_prob, by_total = grads_out[0], values.at(grads_out, 1), values.at(grads_out, 3)
    if not needs_grad[0] or (by_loss is None and by_log_prob is None and by_total is None):
        return nothing
    x = require(inputs, 0)
    batch, _, *rest = b.graph.shape(x)
    top, total = kept_statistics(b, x, outputs, (2, 3), (batch, 1, *rest)) or _softmax_parts(b, x)
    softmax = b.elementwise(lambda v, m, s: sympy.exp(v - m) / s, x, top, total, label="softmax")
    terms = []
    if by_loss is not None:
        terms.append(_through_loss(b, softmax, require(inputs, 1), _scale(b, node, inputs, by_loss)))
    if by_log_prob is not None:
        sums = b.reduce("sum", None, by_log_prob, axes=(1,), keepdims=True, label="softmax_dot")
        terms.append(b.elementwise(lambda p, g, s: g - p * s, softmax, by_log_prob, sums, label="log_softmax_grad"))
    if by_total is not None:
        terms.append(b.elementwise(lambda g, v, m: g * sympy.exp(v - m), by_total, x, top, label="sum_grad"))
    dx = terms[0] if len(terms) == 1 else b.elementwise(lambda *t: sympy.Add(*t), *terms, label="loss_grad")
    return [dx, *nothing[1:]]


def _through_loss(b: Builder, softmax: str, labels: str, scale: str) -> str:
    dx = b.graph.add_array("loss_grad", b.graph.shape(softmax), b.graph.dtype(softmax))
    reads = {"p": (softmax, lambda *i: i), "t": (labels, _without_class), "scale": (scale, _without_class)}

    def value(i: tuple[sympy.Symbol, ...], p: sympy.Expr, t: sympy.Expr, scale: sympy.Expr) -> sympy.Expr:
        return p * scale + _minus_one_hot(i, t, scale)

    b.map(b.graph.shape(softmax), reads, {"out": (dx, lambda *i: i)}, value, label="loss_grad")
    return dx


def _minus_one_hot(i: tuple[sympy.Symbol, ...], t: sympy.Expr, scale: sympy.Expr) -> sympy.Expr:
    return scalar.select(scalar.eq(t, i[1]), -scale, 0)


def _without_class(*i: tuple[sympy.Symbol, ...]) -> tuple[sympy.Expr, ...]:
    return (i[0], *i[2:])


def _scale(b: Builder, node: Operator, inputs: Names, dy: str) -> str:
    """The derivative of the reduction by each label's loss, before the sign."""
    labels, weights = require(inputs, 1), _weights(b, node, inputs)
    scale = dy if weights is None else b.elementwise(lambda g, w: g * w, dy, weights, label="loss_scale")
    if node.attribute("reduction", "mean") == "mean":
        count = _normaliser(b, labels, weights, dy)
        scale = b.elementwise(lambda g, n: g / n, scale, count, label="loss_scale")
    if node.attribute("ignore_index") is not None:  # 0 for what is ignored, also where all is: 0 / 0 is no gradient
        scale = b.elementwise(lambda g, k: scalar.select(_is_ignored(node, k), 0, g), scale, labels, label="loss_scale")
    return b.expand(scale, b.graph.shape(labels))


@supports(*_OPERATORS)
def why_not_loss(graph: Graph, node: Operator) -> str | None:
    x, labels = map(graph.shape, graph.operands(node, 2))
    if len(x) < 2 or len(labels) != len(x) - 1:
        return f"scores of shape {x} with labels of shape {labels}; expected [N, C, d...] and [N, d...]"
    reduction = node.attribute("reduction", "mean")
    return None if reduction in ("none", "sum", "mean") else f"reduction {reduction!r}; expected none, sum or mean"

"""Losses that PyTorch computes in one operator; the others are taken apart before they come here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import sympy

from daceopt.capture.torch.aten.random import probability
from daceopt.capture.torch.calls import Promise
from daceopt.capture.torch.table import translates
from daceopt.capture.torch.translation import Translation
from daceopt.errors import Unsupported
from daceopt.ir.nodes.builder import broadcast_shapes
from daceopt.ir.scalar import scalar, types
from daceopt.ops.families.reduction import element_count

_REDUCTIONS = ("none", "mean", "sum")  # as ATen counts them


# -------------------------------------------------------------------- of class labels


@translates("nll_loss_forward", "nll_loss2d_forward")
def nll_loss(
    t: Translation, self: str, target: str, weight: str | None, reduction: int, ignore_index: int
) -> tuple[str, str]:
    """Scores [N, C, d...] or [C], labels without the C; also the sum of the weights, which the backward reads."""
    scores, labels = self, target
    if weight is not None:  # for which PyTorch has no derivative
        promise = Promise(t.shape_of(weight), t.dtype_of(weight))
        weight = t.operator("StopGradient", weight, domain="daceopt", results=[promise])
    if len(t.shape_of(self)) == 1:
        scores, labels = t.reshape(self, (1, *t.shape_of(self))), t.reshape(target, (1,))
    shape = () if reduction else t.shape_of(labels)
    loss = t.operator(
        "NegativeLogLikelihoodLoss",
        *(scores, labels, weight),
        results=[Promise(shape, t.dtype)],
        reduction=_REDUCTIONS[reduction],
        ignore_index=ignore_index,
    )
    return t.reshape(loss, t.shape), _total_weight(t, labels, weight, ignore_index)


def _total_weight(t: Translation, labels: str, weight: str | None, ignored: int) -> str:
    promise = t.promised[1]
    if promise.shape:
        return t.b.full(promise.shape, 0, promise.dtype)
    wide, shape = types.compute_type(promise.dtype), t.shape_of(labels)
    out = t.graph.add_array("total_weight", (), promise.dtype)
    reads: dict[str, Any] = {"k": (labels, lambda *i: i)}
    if weight is not None:
        reads["w"] = (weight, lambda *i: (None,))

    def value(i: tuple[sympy.Symbol, ...], k: sympy.Expr, w: sympy.Expr | None = None) -> sympy.Expr:
        skip = scalar.eq(k, ignored)
        each = 1 if w is None else scalar.load(w, scalar.select(skip, 0, k))
        return scalar.cast(scalar.select(skip, 0, each), wide)

    t.b.map(shape, reads, {"out": (out, lambda *i: (), "sum")}, value)
    return out


@translates("multi_margin_loss", derivative="aten")
def multi_margin_loss(t: Translation, **arguments: object) -> str:
    raise Unsupported("a margin whose gradient at the margin is PyTorch's own choice")


@translates("multilabel_margin_loss_forward", derivative="aten")
def multilabel_margin_loss(t: Translation, **arguments: object) -> str:
    raise Unsupported("a list of labels that ends at the first negative one")


# -------------------------------------------------------------------- element by element


@translates("binary_cross_entropy", derivative="aten")
def binary_cross_entropy(t: Translation, self: str, target: str, weight: str | None, reduction: int) -> str:
    """Logarithms are -100 at least, as in PyTorch; probabilities outside of [0, 1] are errors."""

    def term(x: sympy.Expr, y: sympy.Expr, *w: sympy.Expr) -> sympy.Expr:
        x, y = probability(x), probability(y)
        logs = (scalar.maximum(f, -100) for f in (scalar.log1p(-x), sympy.log(x)))
        loss = (y - 1) * next(logs) - y * next(logs)
        return sympy.Mul(loss, *w)

    return reduced_loss(t, term, [self, target, *([] if weight is None else [weight])], reduction)


_LEAST = float(np.float32(1e-12))  # PyTorch's constant is a float, whatever the elements are


@translates("binary_cross_entropy_backward", derivative="aten")
def binary_cross_entropy_backward(
    t: Translation, grad_output: str, self: str, target: str, weight: str | None, reduction: int
) -> str:
    """The product of probabilities below is bounded, where PyTorch's forward bounds the logarithms."""

    def slope(g: sympy.Expr, x: sympy.Expr, y: sympy.Expr, *w: sympy.Expr) -> sympy.Expr:
        return sympy.Mul(g * (x - y), *w) / scalar.maximum((1 - x) * x, sympy.Float(_LEAST, 17))

    return _shared_slope(t, slope, [grad_output, self, target, *([] if weight is None else [weight])], reduction)


def _shared_slope(t: Translation, slope: Callable[..., Any], arrays: list[str], reduction: int) -> str:
    """``slope`` of the elements, divided by their number where the loss is their mean."""
    count = sympy.Mul(*t.shape) if _REDUCTIONS[reduction] == "mean" else sympy.Integer(1)
    if count in (0, 1):
        return t.kernel(slope, *arrays)
    number = count if count.is_Integer else scalar.cast(count, types.compute_type(t.dtype))
    return t.kernel(lambda *e: slope(*e) / number, *arrays)


@translates("smooth_l1_loss", derivative="aten")
def smooth_l1_loss(t: Translation, self: str, target: str, reduction: int, beta: float) -> str:
    """Without a derivative of its own: that of the branch not taken is NaN where the difference is infinite."""
    near = sympy.Float(beta, 17)

    def term(x: sympy.Expr, y: sympy.Expr) -> sympy.Expr:
        size = scalar.absolute(x - y)
        return scalar.select(scalar.lt(size, near), size * size / (2 * near), size - near / 2) if beta else size

    return reduced_loss(t, term, _both(t, self, target), reduction)


@translates("huber_loss", derivative="aten")
def huber_loss(t: Translation, self: str, target: str, reduction: int, delta: float) -> str:
    """As ``smooth_l1_loss``, times ``delta``."""
    bound = sympy.Float(delta, 17)

    def term(x: sympy.Expr, y: sympy.Expr) -> sympy.Expr:
        size = scalar.absolute(x - y)
        return scalar.select(scalar.le(size, bound), size * size / 2, bound * (size - bound / 2))

    return reduced_loss(t, term, _both(t, self, target), reduction)


@translates("smooth_l1_loss_backward")
def smooth_l1_loss_backward(
    t: Translation, grad_output: str, self: str, target: str, reduction: int, beta: float
) -> str:
    return _bounded_slope(t, [grad_output, *_both(t, self, target)], reduction, beta, 1.0)


@translates("huber_loss_backward")
def huber_loss_backward(t: Translation, grad_output: str, self: str, target: str, reduction: int, delta: float) -> str:
    return _bounded_slope(t, [grad_output, *_both(t, self, target)], reduction, delta, delta)


def _bounded_slope(t: Translation, arrays: list[str], reduction: int, bound: float, top: float) -> str:
    """Of ``top`` where the difference is ``bound`` or more; NaN of NaN."""
    end, height = sympy.Float(bound, 17), sympy.Float(top, 17)

    def slope(g: sympy.Expr, x: sympy.Expr, y: sympy.Expr) -> sympy.Expr:
        inner = (x - y) * (height / end) if bound else x - y
        ends = scalar.select(scalar.ge(x - y, end), height * g, inner * g)
        return scalar.select(scalar.le(x - y, -end), -height * g, ends)

    return _shared_slope(t, slope, arrays, reduction)


def _both(t: Translation, x: str, y: str) -> list[str]:
    """Both broadcast; one array twice under two names, since SymPy makes ``x - x`` zero, for infinities too."""
    shape = broadcast_shapes(t.shape_of(x), t.shape_of(y))
    wide = types.compute_type(t.dtype)
    return [t.b.reshape(t.expand(t.cast(n, wide), shape), shape) for n in (x, y)]


def reduced_loss(t: Translation, term: Callable[..., Any], arrays: list[str], reduction: int) -> str:
    """``term`` of the elements, by themselves, their mean or their sum."""
    if _REDUCTIONS[reduction] == "none":
        return t.kernel(term, *arrays)
    shape = t.shape_of(arrays[0])
    axes, wide = tuple(range(len(shape))), types.compute_type(t.dtype)
    total = t.b.reduce("sum", term, *arrays, axes=axes, dtype=wide)
    if _REDUCTIONS[reduction] == "sum":
        return t.cast(total, t.dtype)
    count = element_count(t.graph, arrays[0], axes)
    if count == 0:
        return t.kernel(lambda s: s + scalar.nan(), total)
    return t.kernel(lambda s: s / (count if count.is_Integer else scalar.cast(count, wide)), total)

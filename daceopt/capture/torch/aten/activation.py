"""Activations, and the operators that PyTorch's own derivatives of them consist of."""

from __future__ import annotations

import numpy as np
import sympy

from daceopt.capture.torch.calls import Number
from daceopt.capture.torch.elements import elements, literal, pointwise
from daceopt.capture.torch.table import translates
from daceopt.capture.torch.translation import Translation
from daceopt.ir.scalar import scalar, types
from daceopt.ops.families.activation import gelu as gelu_form
from daceopt.ops.families.activation import gelu_tanh

_SIXTH = sympy.Rational(1, 6)
_FLOAT_SIXTH = sympy.Float(float(np.float32(1) / np.float32(6)), 17)  # a float in ATen, whatever the elements are
select, lt, le, gt, ge = scalar.select, scalar.lt, scalar.le, scalar.gt, scalar.ge


@translates("relu")
def relu(t: Translation, self: str) -> str:
    return t.operator("Relu", self)


@translates("gelu")
def gelu(t: Translation, self: str, approximate: str) -> str:
    return t.operator("Gelu", self, approximate=approximate)


pointwise("silu")(lambda x: x * scalar.sigmoid(x))
pointwise("mish")(lambda x: x * sympy.tanh(scalar.softplus(x)))


@pointwise("hardswish")
def hardswish(x: sympy.Expr) -> sympy.Expr:
    """x relu6(x + 3) / 6, which is NaN at minus infinity; flat below -3."""
    flat = select(gt(x, -scalar.infinity()), scalar.copysign(0, x), scalar.nan())
    return select(le(x, -3), flat, select(lt(x, 3), x * (x + 3) * _SIXTH, x))


def _nan_or_zero(x: sympy.Expr) -> sympy.Expr:
    """NaN where ``x`` is, else 0; without a gradient."""
    return select(scalar.isnan(x), scalar.nan(), 0)


@pointwise("hardsigmoid", derivative="aten")
def hardsigmoid(x: sympy.Expr) -> sympy.Expr:
    """Flat at both ends, bounds included."""
    inside = scalar.logical_and(gt(x, -3), lt(x, 3))
    return select(inside, (x + 3) * _SIXTH, select(ge(x, 3), 1, _nan_or_zero(x)))


@translates("hardtanh")
def hardtanh(t: Translation, self: str, min_val: Number, max_val: Number) -> str:
    """Flat at both ends, bounds included, unlike ``clamp``."""
    low, high = (literal(v, types.compute_type(t.dtype)) for v in (min_val, max_val))
    return elements(t, lambda x: select(ge(x, high), high, select(le(x, low), low, x)), self)


@translates("elu")
def elu(t: Translation, self: str, alpha: Number, scale: Number, input_scale: Number) -> str:
    def fn(x: sympy.Expr, a: sympy.Expr, s: sympy.Expr, i: sympy.Expr) -> sympy.Expr:
        return select(le(x, 0), a * s * scalar.expm1(i * x), s * x)

    return elements(t, fn, self, alpha, scale, input_scale)


@translates("celu")
def celu(t: Translation, self: str, alpha: Number) -> str:
    return elu(t, self, alpha, 1, 1 / alpha)


@translates("selu")
def selu(t: Translation, self: str) -> str:
    return elu(t, self, 1.6732632423543772, 1.0507009873554805, 1)


pointwise("leaky_relu", by="self negative_slope")(lambda x, slope: select(gt(x, 0), x, slope * x))
pointwise("_prelu_kernel", by="self weight", opaque=True)(lambda x, slope: select(gt(x, 0), x, slope * x))


@translates("threshold")
def threshold(t: Translation, self: str, threshold: Number, value: Number) -> str:
    wide = types.compute_type(t.dtype)
    bound, low = literal(threshold, wide), literal(value, wide)
    return elements(t, lambda x: select(le(x, bound), low, x), self)


def _between(x: sympy.Expr, bound: sympy.Expr) -> sympy.Expr:
    """Within the bounds, which NaN is not."""
    return scalar.logical_and(ge(x, -bound), le(x, bound))


@translates("softshrink")
def softshrink(t: Translation, self: str, lambd: Number) -> str:
    bound = literal(lambd, t.dtype)
    return elements(t, lambda x: select(_between(x, bound), 0, select(gt(x, bound), x - bound, x + bound)), self)


@translates("hardshrink")
def hardshrink(t: Translation, self: str, lambd: Number) -> str:
    bound = literal(lambd, t.dtype)
    return elements(t, lambda x: select(_between(x, bound), 0, x), self)


@translates("softplus")
def softplus(t: Translation, self: str, beta: Number, threshold: Number) -> str:
    bound = literal(threshold, types.compute_type(t.dtype))
    return elements(t, lambda x, b: select(gt(b * x, bound), x, scalar.softplus(b * x) / b), self, beta)


@translates("log_sigmoid_forward")
def log_sigmoid(t: Translation, self: str) -> tuple[str, str]:
    """With what ATen keeps for its derivative."""
    buffer = elements(t, lambda x: sympy.exp(-sympy.Abs(x)), self)
    return elements(t, lambda x: -scalar.softplus(-x), self), buffer


# -------------------------------------------------------------------- derivatives

pointwise("sigmoid_backward", by="grad_output output")(lambda g, y: g * y * (1 - y))
pointwise("tanh_backward", by="grad_output output")(lambda g, y: g * (1 - y * y))
pointwise("silu_backward", by="grad_output self")(
    lambda g, x: g * scalar.sigmoid(x) * (1 + x * (1 - scalar.sigmoid(x)))
)
pointwise("hardsigmoid_backward", by="grad_output self")(
    lambda g, x: select(scalar.logical_and(gt(x, -3), lt(x, 3)), g * _FLOAT_SIXTH, 0)
)
pointwise("hardswish_backward", by="grad_output self")(
    lambda g, x: select(le(x, -3), 0, select(lt(x, 3), g * (x / 3 + sympy.Rational(1, 2)), g))
)
pointwise("log_sigmoid_backward", by="grad_output self")(lambda g, x, buffer: g * scalar.sigmoid(-x))


@translates("elu_backward", derivative="aten")
def elu_backward(
    t: Translation,
    grad_output: str,
    alpha: Number,
    scale: Number,
    input_scale: Number,
    is_result: bool,
    self_or_result: str,
) -> str:
    def fn(g: sympy.Expr, x: sympy.Expr, a: sympy.Expr, s: sympy.Expr, i: sympy.Expr) -> sympy.Expr:
        slope = x + a * s if is_result else a * s * sympy.exp(i * x)
        return select(le(x, 0), g * i * slope, g * s)

    return elements(t, fn, grad_output, self_or_result, alpha, scale, input_scale)


pointwise("leaky_relu_backward", by="grad_output self negative_slope")(
    lambda g, x, slope, self_is_result: select(gt(x, 0), g, slope * g)
)


@translates("gelu_backward")
def gelu_backward(t: Translation, grad_output: str, self: str, approximate: str) -> str:
    x = scalar.symbol("x", types.compute_type(t.dtype))
    slope = scalar.differentiate((gelu_tanh if approximate == "tanh" else gelu_form)(x), x)
    return elements(t, lambda g, v: g * slope.xreplace({x: v}), grad_output, self)


@translates("threshold_backward")
def threshold_backward(t: Translation, grad_output: str, self: str, threshold: Number) -> str:
    bound = literal(threshold, types.compute_type(t.dtype_of(self)))
    return elements(t, lambda g, x: select(le(x, bound), 0, g), grad_output, self)


@translates("hardtanh_backward")
def hardtanh_backward(t: Translation, grad_output: str, self: str, min_val: Number, max_val: Number) -> str:
    low, high = (literal(v, types.compute_type(t.dtype_of(self))) for v in (min_val, max_val))
    return elements(t, lambda g, x: select(scalar.logical_or(le(x, low), ge(x, high)), 0, g), grad_output, self)


@translates("softplus_backward")
def softplus_backward(t: Translation, grad_output: str, self: str, beta: Number, threshold: Number) -> str:
    bound = literal(threshold, types.compute_type(t.dtype))
    return elements(t, lambda g, x, b: select(gt(b * x, bound), g, g * scalar.sigmoid(b * x)), grad_output, self, beta)


def _flat_between(name: str) -> None:
    @translates(name)
    def rule(t: Translation, lambd: Number, self: str, **gradient: str) -> str:
        bound = literal(lambd, t.dtype)
        (grad,) = gradient.values()
        return elements(t, lambda g, x: select(_between(x, bound), 0, g), grad, self)


_flat_between("softshrink_backward")
_flat_between("hardshrink_backward")

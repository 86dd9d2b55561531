"""Arithmetic, roots, powers, rounding, selection: operators that work element by element."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce

import sympy

from daceopt.capture.torch.calls import ArrayOrNumber, Number, Promise
from daceopt.capture.torch.elements import elements, literal, operand, operators, pointwise
from daceopt.capture.torch.table import translates
from daceopt.capture.torch.translation import Translation
from daceopt.errors import Unsupported
from daceopt.ir.scalar import checks, scalar, types
from daceopt.torch_internals import inductor

inductor.define_primitives()  # ``prims::fma``

operators(
    {
        "exp": "Exp",
        "log": "Log",
        "sqrt": "Sqrt",
        "reciprocal": "Reciprocal",
        "sin": "Sin",
        "cos": "Cos",
        "tan": "Tan",
        "sinh": "Sinh",
        "cosh": "Cosh",
        "tanh": "Tanh",
        "asin": "Asin",
        "acos": "Acos",
        "atan": "Atan",
        "asinh": "Asinh",
        "atanh": "Atanh",
        "erf": "Erf",
        "sigmoid": "Sigmoid",
    }
)
operators({"acosh": "Acosh"}, derivative="aten")  # ATen's derivative is finite below -1, where there is no value

pointwise("log1p")(scalar.log1p)
pointwise("expm1")(scalar.expm1)
pointwise("exp2")(scalar.exp2)
pointwise("log2")(scalar.log2)
pointwise("log10")(scalar.log10)
pointwise("erfc")(scalar.erfc)
pointwise("deg2rad")(lambda x: x * sympy.Float(math.pi / 180, 17))
pointwise("rad2deg")(lambda x: x * sympy.Float(180 / math.pi, 17))


@translates("rsqrt")
def rsqrt(t: Translation, self: str) -> str:
    root = t.operator("Sqrt", operand(t, self), results=[Promise(t.shape, types.compute_type(t.dtype))])
    return t.operator("Reciprocal", root)


# -------------------------------------------------------------------- arithmetic


@translates("add.Tensor", "add.Scalar")
def add(t: Translation, self: ArrayOrNumber, other: ArrayOrNumber, alpha: Number) -> str:
    if alpha != 1 or types.is_bool(t.dtype):
        return elements(t, lambda x, y, a: x + a * y, self, other, alpha)
    return t.operator("Add", operand(t, self), operand(t, other))


@translates("sub.Tensor", "sub.Scalar")
def sub(t: Translation, self: ArrayOrNumber, other: ArrayOrNumber, alpha: Number) -> str:
    if alpha != 1:
        return elements(t, lambda x, y, a: x - a * y, self, other, alpha)
    return t.operator("Sub", operand(t, self), operand(t, other))


@translates("rsub.Tensor", "rsub.Scalar")
def rsub(t: Translation, self: ArrayOrNumber, other: ArrayOrNumber, alpha: Number) -> str:
    return sub(t, other, self, alpha)


@translates("mul.Tensor", "mul.Scalar")
def mul(t: Translation, self: ArrayOrNumber, other: ArrayOrNumber) -> str:
    if types.is_bool(t.dtype):
        return elements(t, scalar.logical_and, self, other)
    return t.operator("Mul", operand(t, self), operand(t, other))


@translates("div.Tensor", "div.Scalar")
def div(t: Translation, self: ArrayOrNumber, other: ArrayOrNumber) -> str:
    return t.operator("Div", operand(t, self), operand(t, other))


@translates("neg")
def neg(t: Translation, self: str) -> str:
    if types.to_numpy(t.dtype).kind == "u":
        return elements(t, lambda x: -x, self)
    return t.operator("Neg", self)


@translates("abs")
def absolute(t: Translation, self: str) -> str:
    return t.operator("Abs", self)


@pointwise("sign", "sgn")
def sign(x: sympy.Expr) -> sympy.Expr:
    """Of NaN it is 0. Without the number -1, which unsigned types do not have."""
    return scalar.sign(scalar.select(scalar.isnan(x), 0, x))


pointwise("square")(lambda x: x**2)
pointwise("addcmul", by="self tensor1 tensor2 value")(lambda x, a, b, v: x + v * a * b)
pointwise("addcdiv", by="self tensor1 tensor2 value")(lambda x, a, b, v: x + v * a / b)
pointwise("prims::fma", by="a b c")(
    lambda a, b, c: a * b + c
)  # what Dynamo makes of addcmul and of an optimizer's lerp


@pointwise("lerp.Scalar", "lerp.Tensor", by="self end weight", opaque=True)
def lerp(start: sympy.Expr, end: sympy.Expr, weight: sympy.Expr) -> sympy.Expr:
    """From the end that is nearer, as ATen does."""
    step = end - start
    near = scalar.lt(scalar.absolute(weight), sympy.Rational(1, 2))
    return scalar.select(near, start + weight * step, end - step * (1 - weight))


# -------------------------------------------------------------------- division with rounding


def floor_quotient(a: sympy.Expr, b: sympy.Expr) -> sympy.Expr:
    """Python's ``a // b`` of floats, as ATen computes it from the remainder; piecewise constant."""
    rest = scalar.fmod(a, b)
    borrows = scalar.logical_and(scalar.ne(rest, 0), scalar.ne(scalar.lt(b, 0), scalar.lt(rest, 0)))
    exact = (a - rest) / b - scalar.select(borrows, 1, 0)
    whole = scalar.floor(exact)
    whole = whole + scalar.select(scalar.gt(exact - whole, sympy.Rational(1, 2)), 1, 0)
    floored = scalar.select(scalar.eq(exact, 0), scalar.trunc(scalar.copysign(0, a / b)), whole)
    return scalar.select(scalar.eq(b, 0), scalar.trunc(a / b), floored)


def floor_quotient_of_integers(a: sympy.Expr, b: sympy.Expr) -> sympy.Expr:
    """Python's ``a // b``."""
    rest = scalar.fmod(a, b)
    borrows = scalar.logical_and(scalar.ne(rest, 0), scalar.ne(scalar.lt(b, 0), scalar.lt(rest, 0)))
    return scalar.idiv(a, b) - scalar.select(borrows, 1, 0)


def _divide(t: Translation, fn: Callable[..., sympy.Expr], self: ArrayOrNumber, other: ArrayOrNumber) -> str:
    """``fn`` of both; of integers, a divisor of 0 is an error, as in ATen."""
    if types.is_float(t.dtype) or (isinstance(other, int) and other != 0):
        return elements(t, fn, self, other, opaque=True)
    return elements(
        t, lambda a, b: fn(a, scalar.checked(scalar.ne(b, 0), b, checks.DIVISION)), self, other, opaque=True
    )


@translates("div.Tensor_mode", "div.Scalar_mode")
def div_rounded(t: Translation, self: ArrayOrNumber, other: ArrayOrNumber, rounding_mode: str | None) -> str:
    if rounding_mode is None:
        return div(t, self, other)
    is_float = types.is_float(t.dtype)
    if rounding_mode == "floor":
        return _divide(t, floor_quotient if is_float else floor_quotient_of_integers, self, other)
    return _divide(t, (lambda a, b: scalar.trunc(a / b)) if is_float else scalar.idiv, self, other)


@translates("floor_divide", "floor_divide.Scalar", derivative="aten")
def floor_divide(t: Translation, self: ArrayOrNumber, other: ArrayOrNumber) -> str:
    """PyTorch refuses to differentiate it, unlike ``div``."""
    return div_rounded(t, self, other, "floor")


@translates("fmod.Tensor", "fmod.Scalar")
def fmod(t: Translation, self: ArrayOrNumber, other: ArrayOrNumber) -> str:
    return _divide(t, scalar.fmod, self, other)


@translates("remainder.Scalar", "remainder.Scalar_Tensor")
def remainder(t: Translation, self: ArrayOrNumber, other: ArrayOrNumber) -> str:
    return _divide(t, scalar.pymod, self, other)


# the derivative by the divisor is a floor division, which differs from a rounded quotient in the last place
translates("remainder.Tensor", derivative="aten")(remainder)


# -------------------------------------------------------------------- powers


@translates("pow.Tensor_Tensor", "pow.Tensor_Scalar")
def power(t: Translation, self: str, exponent: ArrayOrNumber) -> str:
    return t.operator("Pow", operand(t, self), operand(t, exponent))


@translates("pow.Scalar")
def power_of_number(t: Translation, self: ArrayOrNumber, exponent: str) -> str:
    if isinstance(self, (int, float)) and self > 1:
        return power(t, self, exponent)
    return elements(t, scalar.power, self, exponent, opaque=True)


# -------------------------------------------------------------------- rounding


def _rounding(name: str, op_type: str) -> None:
    @translates(name)
    def rule(t: Translation, self: str) -> str:
        return t.operator(op_type, self) if types.is_float(t.dtype) else self


for _name, _op_type in {"floor": "Floor", "ceil": "Ceil", "round": "Round"}.items():
    _rounding(_name, _op_type)

pointwise("trunc")(scalar.trunc)
pointwise("frac")(lambda x: x - scalar.trunc(x))


@translates("round.decimals")
def round_to(t: Translation, self: str, decimals: int) -> str:
    if not types.is_float(t.dtype):
        return self
    ten = float(10 ** abs(decimals))
    if decimals < 0:
        return elements(t, lambda x, s: scalar.round_even(x / s) * s, self, ten, opaque=True)
    return elements(t, lambda x, s: scalar.round_even(x * s) / s, self, ten, opaque=True)


# -------------------------------------------------------------------- selection


@translates("where.self")
def where(t: Translation, condition: str, self: str, other: str) -> str:
    return t.operator("Where", t.cast(condition, types.from_name("bool")), operand(t, self), operand(t, other))


pointwise("maximum", by="self other", opaque=True)(scalar.maximum)
pointwise("minimum", by="self other", opaque=True)(scalar.minimum)


@pointwise("fmax", by="self other", opaque=True)
def fmax(a: sympy.Expr, b: sympy.Expr) -> sympy.Expr:
    """The operand that is no NaN, if there is one; the first of equals."""
    return scalar.select(scalar.logical_or(scalar.ge(a, b), scalar.isnan(b)), a, b)


@pointwise("fmin", by="self other", opaque=True)
def fmin(a: sympy.Expr, b: sympy.Expr) -> sympy.Expr:
    """The operand that is no NaN, if there is one; the first of equals."""
    return scalar.select(scalar.logical_or(scalar.le(a, b), scalar.isnan(b)), a, b)


@translates("clamp", "clamp_min", "clamp_max")
def clamp(t: Translation, self: str, min: Number | None = None, max: Number | None = None) -> str:
    """The upper bound wins. The gradient passes at the bounds, not at NaN."""
    if any(b is not None and (not isinstance(b, (int, float)) or math.isnan(b)) for b in (min, max)):
        raise Unsupported(f"clamp between {min} and {max}; expected numbers")
    low, high = (None if b is None else literal(b, t.dtype) for b in (min, max))

    def fn(x: sympy.Expr) -> sympy.Expr:
        checks = [scalar.ge(x, low)] * (low is not None) + [scalar.le(x, high)] * (high is not None)
        outside = scalar.trunc(x)  # of NaN, without a gradient
        outside = outside if low is None else scalar.select(scalar.lt(x, low), low, outside)
        outside = outside if high is None else scalar.select(scalar.gt(maximum(x, low), high), high, outside)
        return scalar.select(reduce(scalar.logical_and, checks), x, outside)

    return elements(t, fn, self)


def maximum(x: sympy.Expr, low: sympy.Expr | None) -> sympy.Expr:
    """For comparisons; ``low`` may be None."""
    return x if low is None else scalar.select(scalar.lt(x, low), low, x)


@pointwise("clamp.Tensor", by="self min max", derivative="aten")
def clamp_by_tensors(x: sympy.Expr, low: sympy.Expr | None, high: sympy.Expr | None) -> sympy.Expr:
    """NaN in any operand is the result."""
    x = x if low is None else scalar.maximum(x, low)
    return x if high is None else scalar.minimum(x, high)


pointwise("clamp_min.Tensor", by="self min", derivative="aten")(scalar.maximum)
pointwise("clamp_max.Tensor", by="self max", derivative="aten")(scalar.minimum)

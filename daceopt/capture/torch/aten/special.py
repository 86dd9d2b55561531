"""Special functions of one and two numbers. What has neither a form nor a row here is called in ATen."""

from __future__ import annotations

import math
from typing import Any

import sympy

from daceopt.capture.torch.elements import elements, literal, pointwise
from daceopt.capture.torch.table import translates
from daceopt.capture.torch.translation import Translation
from daceopt.errors import Unsupported
from daceopt.ir.scalar import scalar, types

select, eq, isnan = scalar.select, scalar.eq, scalar.isnan

pointwise("atan2", by="self other", opaque=True)(scalar.atan2)
pointwise("hypot", by="self other", opaque=True)(scalar.hypot)
pointwise("copysign.Tensor", "copysign.Scalar", by="self other", opaque=True)(scalar.copysign)


@translates("nextafter", derivative="aten")
def nextafter(t: Translation, self: str, other: str) -> str:
    """Whoever differentiates this is told by PyTorch that it has no derivative."""
    if types.is_narrow(t.dtype):
        raise Unsupported(f"the next number in {types.name_of(t.dtype)}, which is computed in a wider type")
    return elements(t, scalar.nextafter, self, other, opaque=True)


@pointwise("heaviside", by="self values", opaque=True, derivative="aten")
def heaviside(x: sympy.Expr, at_zero: sympy.Expr) -> sympy.Expr:
    """Of NaN it is 0."""
    return select(eq(x, 0), at_zero, select(scalar.gt(x, 0), 1, 0))


def _of_equal_infinities(a: sympy.Expr, b: sympy.Expr, otherwise: sympy.Expr) -> sympy.Expr:
    return select(scalar.logical_and(scalar.isinf(a), eq(a, b)), a, otherwise)


@pointwise("logaddexp", by="self other", opaque=True, derivative="aten")
def logaddexp(a: sympy.Expr, b: sympy.Expr) -> sympy.Expr:
    """log(exp(a) + exp(b))"""
    return _of_equal_infinities(a, b, scalar.maximum(a, b) + scalar.log1p(sympy.exp(-scalar.absolute(a - b))))


@pointwise("logaddexp2", by="self other", opaque=True, derivative="aten")
def logaddexp2(a: sympy.Expr, b: sympy.Expr) -> sympy.Expr:
    """log2(2**a + 2**b)"""
    rest = scalar.log1p(scalar.exp2(-scalar.absolute(a - b))) * sympy.Float(1 / math.log(2), 17)
    return _of_equal_infinities(a, b, scalar.maximum(a, b) + rest)


def _product(x: sympy.Expr, y: sympy.Expr, logarithm: sympy.Expr) -> sympy.Expr:
    """``x * logarithm``, 0 where x is 0; NaN where ``y`` is."""
    return select(isnan(y), y, select(eq(x, 0), 0, x * logarithm))


_XLOGY = ("xlogy.Tensor", "xlogy.Scalar_Self", "xlogy.Scalar_Other")
_XLOG1PY = ("special_xlog1py", "special_xlog1py.self_scalar", "special_xlog1py.other_scalar")
pointwise(*_XLOGY, by="self other", opaque=True, derivative="aten")(lambda x, y: _product(x, y, sympy.log(y)))
pointwise(*_XLOG1PY, by="self other", opaque=True, derivative="aten")(lambda x, y: _product(x, y, scalar.log1p(y)))


@pointwise("special_entr", derivative="aten")
def entr(x: sympy.Expr) -> sympy.Expr:
    """-x log(x), 0 at 0 and -inf below."""
    return select(isnan(x), x, select(scalar.gt(x, 0), -x * sympy.log(x), select(eq(x, 0), 0, -scalar.infinity())))


pointwise("ldexp.Tensor", by="self other", opaque=True)(lambda x, n: x * scalar.exp2(n))


@pointwise("sinc", derivative="aten")
def sinc(x: sympy.Expr) -> sympy.Expr:
    """sin(pi x) / (pi x)"""
    product = x * sympy.Float(math.pi, 17)
    return select(eq(x, 0), 1, sympy.sin(product) / product)


@translates("logit", derivative="aten")
def logit(t: Translation, self: str, eps: float | None) -> str:
    """log(x / (1 - x)) of ``x`` between ``eps`` and ``1 - eps``."""
    bounds = None if eps is None else _bounds(t, eps)

    def fn(x: sympy.Expr) -> sympy.Expr:
        inner = x if bounds is None else scalar.minimum(scalar.maximum(x, bounds[0]), bounds[1])
        return sympy.log(inner / (1 - inner))

    return elements(t, fn, self)


def _bounds(t: Translation, eps: float) -> tuple[Any, Any]:
    """``eps`` and ``1 - eps``, each rounded to the type of the result: of half types the latter may be 1."""
    low = literal(eps, t.dtype)
    return low, literal(1 - float(low), t.dtype)


@translates("logit_backward")
def logit_backward(t: Translation, grad_output: str, self: str, eps: float | None) -> str:
    """NaN outside of [0, 1] where there is no ``eps``; without a slope outside of ``eps`` and ``1 - eps``."""
    low, high = (sympy.Integer(0), sympy.Integer(1)) if eps is None else _bounds(t, eps)
    flat = scalar.nan() if eps is None else sympy.Integer(0)

    def fn(g: sympy.Expr, x: sympy.Expr) -> sympy.Expr:
        outside = scalar.logical_or(scalar.lt(x, low), scalar.gt(x, high))
        border = scalar.logical_or(scalar.eq(x, 0), scalar.eq(x, 1))  # also -0.0
        return select(outside, flat, select(border, g * scalar.infinity(), g / (x * (1 - x))))

    return elements(t, fn, grad_output, self)


@translates("nan_to_num", derivative="aten")
def nan_to_num(t: Translation, self: str, nan: float | None, posinf: float | None, neginf: float | None) -> str:
    if not types.is_float(t.dtype):
        return self
    import ml_dtypes

    limits = ml_dtypes.finfo(types.to_numpy(t.dtype))
    defaults = (0.0, float(limits.max), float(limits.min))
    values = [literal(d if v is None else v, t.dtype) for v, d in zip((nan, posinf, neginf), defaults)]

    def fn(x: sympy.Expr) -> sympy.Expr:
        infinite = select(scalar.gt(x, 0), values[1], values[2])
        return select(isnan(x), values[0], select(scalar.isinf(x), infinite, x))

    return elements(t, fn, self)

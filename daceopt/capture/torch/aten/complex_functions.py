"""Arithmetic of complex tensors: real arithmetic on both parts.

A function is written as its real and its imaginary part, which are computed where an element is. A product of
matrices is one of real matrices: the parts of a row of the left factor are side by side, so the right one gets two
rows for each of its own, ``[re, im]`` and ``[-im, re]``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import sympy

from daceopt.capture.torch.aten import reduction
from daceopt.capture.torch.aten.complex import as_complex, check_precision, number, operand_is_complex
from daceopt.capture.torch.calls import ArrayOrNumber, Number, Promise
from daceopt.capture.torch.table import translates
from daceopt.capture.torch.translation import Translation
from daceopt.errors import Unsupported
from daceopt.ir.scalar import scalar, types
from daceopt.ir.scalar.dims import Dim, Shape, dim

Parts = tuple[sympy.Expr, sympy.Expr]

# -------------------------------------------------------------------- element by element


def elements(t: Translation, function: Callable[..., Parts], *operands: str) -> str:
    """``function`` of both parts of each operand, ``(x_re, x_im, y_re, ...) -> (re, im)``, broadcast."""
    check_precision(t)
    out, reads = t.graph.add_array(t.label, t.shape, t.dtype), _parts(t, operands, len(t.shape) - 1)

    def element(i: tuple[sympy.Symbol, ...], **read: sympy.Expr) -> sympy.Expr:
        return scalar.select(scalar.eq(i[-1], 0), *function(*read.values()))

    t.b.map(t.shape, reads, {"out": (out, lambda *i: i)}, element)
    return out


def real_elements(t: Translation, function: Callable[..., sympy.Expr], *operands: str) -> str:
    """``function`` of both parts of each operand as a real tensor, or as one of conditions."""
    out, reads = t.graph.add_array(t.label, t.shape, t.dtype), _parts(t, operands, len(t.shape))
    t.b.map(t.shape, reads, {"out": (out, lambda *i: i)}, lambda i, **read: function(*read.values()))
    return out


def _parts(t: Translation, operands: tuple[str, ...], rank: int) -> dict[str, tuple[str, Callable[..., Any]]]:
    return {
        f"x{k}_{p}": (name, _part(t.shape_of(name)[:-1], p, rank)) for k, name in enumerate(operands) for p in (0, 1)
    }


def _part(shape: Shape, part: int, rank: int) -> Callable[..., tuple[Any, ...]]:
    """Where the part of an element of a result of ``rank`` axes is in an operand of ``shape``."""

    def index(*i: sympy.Expr) -> tuple[Dim | None, ...]:
        places = i[rank - len(shape) : rank]
        return (*(0 if n == 1 else p for n, p in zip(shape, places)), part)

    return index


def _function(
    name: str, derivative: str = "aten"
) -> Callable[[Callable[[sympy.Expr, sympy.Expr], Parts]], Callable[..., Parts]]:
    """Register the rule of a function of one complex tensor, from the parts of an element to those of its value."""

    def register(function: Callable[[sympy.Expr, sympy.Expr], Parts]) -> Callable[..., Parts]:
        def rule(t: Translation, self: str) -> str:
            return elements(t, function, self)

        translates(name, derivative=derivative, complexes=True)(rule)
        return function

    return register


@_function("exp")
def exp(a: sympy.Expr, b: sympy.Expr) -> Parts:
    return sympy.exp(a) * sympy.cos(b), sympy.exp(a) * sympy.sin(b)


@_function("log")
def log(a: sympy.Expr, b: sympy.Expr) -> Parts:
    return sympy.log(scalar.hypot(a, b)), scalar.atan2(b, a)


@_function("sgn")
def sgn(a: sympy.Expr, b: sympy.Expr) -> Parts:
    size = scalar.hypot(a, b)
    zero = scalar.eq(size, 0)
    return scalar.select(zero, 0, scalar.divide(a, size)), scalar.select(zero, 0, scalar.divide(b, size))


@_function("reciprocal")
def reciprocal(a: sympy.Expr, b: sympy.Expr) -> Parts:
    return quotient(sympy.Integer(1), sympy.Integer(0), a, b)


@_function("sin")
def sin(a: sympy.Expr, b: sympy.Expr) -> Parts:
    return sympy.sin(a) * sympy.cosh(b), sympy.cos(a) * sympy.sinh(b)


@_function("cos")
def cos(a: sympy.Expr, b: sympy.Expr) -> Parts:
    return sympy.cos(a) * sympy.cosh(b), -sympy.sin(a) * sympy.sinh(b)


@translates("pow.Tensor_Scalar", derivative="aten", complexes=True)
def power(t: Translation, self: str, exponent: ArrayOrNumber) -> str:
    """Squares, and what their derivatives need."""
    check_precision(t)
    if exponent not in (1, 2):
        raise Unsupported(f"complex numbers to the power of {exponent}")
    return as_complex(t, self) if exponent == 1 else elements(t, product, self, self)


def product(a: sympy.Expr, b: sympy.Expr, c: sympy.Expr, d: sympy.Expr) -> Parts:
    """``(a + ib) * (c + id)``"""
    return a * c - b * d, a * d + b * c


def quotient(a: sympy.Expr, b: sympy.Expr, c: sympy.Expr, d: sympy.Expr) -> Parts:
    """``(a + ib) / (c + id)`` by the ratio of the divisor's parts, whose squares may be out of range."""
    wide = scalar.ge(scalar.absolute(c), scalar.absolute(d))
    large, small = scalar.select(wide, c, d), scalar.select(wide, d, c)
    nothing = scalar.logical_and(scalar.eq(c, 0), scalar.eq(d, 0))
    ratio = scalar.select(nothing, 0, scalar.divide(small, large))
    divisor = large + small * ratio
    re = scalar.select(wide, a + b * ratio, a * ratio + b)
    im = scalar.select(wide, b - a * ratio, b * ratio - a)
    return scalar.divide(re, divisor), scalar.divide(im, divisor)


@translates("abs", derivative="aten", complexes=True)
def absolute(t: Translation, self: str) -> str:
    check_precision(t)
    return real_elements(t, scalar.hypot, self)


@translates("angle", derivative="aten", complexes=True)
def angle(t: Translation, self: str) -> str:
    check_precision(t)
    return real_elements(t, lambda a, b: scalar.atan2(b, a), self)


@translates("polar", derivative="aten", complexes=True)
def polar(t: Translation, abs: str, angle: str) -> str:
    check_precision(t)
    parts = [t.expand(t.cast(x, t.dtype), t.shape[:-1]) for x in (abs, angle)]
    both = [t.reshape(x, (*t.shape[:-1], 1)) for x in parts]
    pairs = t.operator("Concat", *both, axis=len(t.shape) - 1)
    return elements(t, lambda r, phi: (r * sympy.cos(phi), r * sympy.sin(phi)), pairs)


@translates("eq.Tensor", "eq.Scalar", complexes=True)
def equal(t: Translation, self: str, other: ArrayOrNumber) -> str:
    return _compare(t, self, other, lambda a, b, c, d: scalar.logical_and(scalar.eq(a, c), scalar.eq(b, d)))


@translates("ne.Tensor", "ne.Scalar", complexes=True)
def unequal(t: Translation, self: str, other: ArrayOrNumber) -> str:
    return _compare(t, self, other, lambda a, b, c, d: scalar.logical_or(scalar.ne(a, c), scalar.ne(b, d)))


def _compare(t: Translation, x: str, y: ArrayOrNumber, function: Callable[..., sympy.Expr]) -> str:
    if isinstance(y, str):
        if not (operand_is_complex(t, x) and operand_is_complex(t, y)) or t.dtype_of(x) != t.dtype_of(y):
            raise Unsupported("complex numbers compared with others")
        return real_elements(t, function, x, y)
    both = [sympy.Float(part, 17) for part in (complex(y).real, complex(y).imag)]
    return real_elements(t, lambda a, b: function(a, b, *both), x)


# -------------------------------------------------------------------- arithmetic


@translates("_conj", "_conj_physical", "conj_physical", complexes=True)
def conjugate(t: Translation, self: ArrayOrNumber) -> str:
    check_precision(t)
    signs = t.b.constant(np.asarray([1, -1], types.to_numpy(t.dtype)))
    return t.operator("Mul", number(t, self), signs)


@translates("neg", "_neg_view", complexes=True)
def negative(t: Translation, self: ArrayOrNumber) -> str:
    check_precision(t)
    return t.operator("Neg", number(t, self))


@translates("add.Tensor", "add.Scalar", complexes=True)
def add(t: Translation, self: ArrayOrNumber, other: ArrayOrNumber, alpha: Number) -> str:
    return _sum(t, self, other, alpha, "Add")


@translates("sub.Tensor", "sub.Scalar", complexes=True)
def sub(t: Translation, self: ArrayOrNumber, other: ArrayOrNumber, alpha: Number) -> str:
    return _sum(t, self, other, alpha, "Sub")


@translates("rsub.Tensor", "rsub.Scalar", complexes=True)
def rsub(t: Translation, self: ArrayOrNumber, other: ArrayOrNumber, alpha: Number) -> str:
    return _sum(t, other, self, alpha, "Sub")


def _sum(t: Translation, x: ArrayOrNumber, y: ArrayOrNumber, alpha: Number, operator: str) -> str:
    """Of real tensors and numbers as well, whose imaginary part is zero."""
    check_precision(t)
    if alpha != 1:
        raise Unsupported(f"a sum of complex numbers with the factor {alpha}")
    return t.operator(operator, _factor(t, x), _factor(t, y))


def _factor(t: Translation, value: ArrayOrNumber) -> str:
    return as_complex(t, value) if isinstance(value, str) else number(t, value)


@translates("mul.Tensor", "mul.Scalar", complexes=True)
def mul(t: Translation, self: str, other: Any) -> str:
    """With a real factor both parts are multiplied; else one map makes both from those of the factors."""
    check_precision(t)
    if isinstance(other, complex):  # PyTorch multiplies the zero of a real factor, too: it makes NaN of infinities
        return elements(t, product, as_complex(t, self), number(t, other))
    return _by_real(t, self, other, "Mul") or elements(t, product, *(t.cast(n, t.dtype) for n in (self, other)))


@translates("div.Tensor", "div.Scalar", derivative="aten", complexes=True)
def div(t: Translation, self: str, other: ArrayOrNumber) -> str:
    check_precision(t)
    if isinstance(other, (int, float)) or (isinstance(other, str) and not operand_is_complex(t, other)):
        return str(_by_real(t, self, other, "Div"))
    return elements(t, quotient, _factor(t, self), _factor(t, other))


def _by_real(t: Translation, x: str, y: Any, operator: str) -> str | None:
    """``x`` and ``y`` of which one is real, part by part; None where both are complex."""
    if not isinstance(y, str):
        return t.operator(operator, as_complex(t, x), t.array(float(y), t.dtype))
    kinds = [operand_is_complex(t, n) for n in (x, y)]
    if all(kinds):
        return None
    factors = [t.cast(n, t.dtype) for n in (x, y)]
    both = [n if kind else t.reshape(n, (*t.shape_of(n), 1)) for n, kind in zip(factors, kinds)]
    return t.operator(operator, *both)


# -------------------------------------------------------------------- sums and products


@translates("sum", "sum.dim_IntList", "mean", "mean.dim", complexes=True)
def total(t: Translation, self: str, dtype: object, dim: list[int] | None = None, keepdim: bool = False) -> str:
    check_precision(t)
    whole = as_complex(t, self)
    rank = len(t.shape_of(whole)) - 1
    axes = sorted({d % rank for d in dim}) if dim and rank else range(rank)
    return reduction.reduce(t, "ReduceSum" if t.label == "sum" else "ReduceMean", whole, axes, keepdim)


@translates("mm", "bmm", "matmul", complexes=True)
def matmul(t: Translation, self: str, mat2: str = "", other: str = "") -> str:
    """A few rows or columns are sums of products; more are one product of real matrices."""
    check_precision(t)
    left, right = (t.shape_of(x) for x in (self, mat2 or other))
    if not len(left) == len(right) == len(t.shape) >= 3 or left[:-3] != right[:-3]:
        raise Unsupported("a product of complex tensors that are no matrices of the same batch")
    factors = t.cast(self, t.dtype), t.cast(mat2 or other, t.dtype)
    return (_add if 1 in t.shape[-3:-1] else _multiply)(t, *factors)


def _add(t: Translation, x: str, y: str) -> str:
    *batch, rows, columns, _ = t.shape
    lead, inner = len(batch), t.shape_of(x)[-2]
    out = t.graph.add_array(t.label, t.shape, t.dtype)
    reads = {f"x{p}": (x, lambda *i, p=p: (*i[: lead + 1], i[-1], p)) for p in (0, 1)}
    reads |= {f"y{p}": (y, lambda *i, p=p: (*i[:lead], i[-1], i[lead + 1], p)) for p in (0, 1)}

    def element(
        i: tuple[sympy.Symbol, ...], x0: sympy.Expr, x1: sympy.Expr, y0: sympy.Expr, y1: sympy.Expr
    ) -> sympy.Expr:
        return scalar.select(scalar.eq(i[-2], 0), *product(x0, x1, y0, y1))

    t.b.map((*batch, rows, columns, 2, inner), reads, {"out": (out, lambda *i: i[:-1], "sum")}, element)
    return out


def _multiply(t: Translation, x: str, y: str) -> str:
    *batch, rows, columns, _ = t.shape
    inner = dim(2 * t.shape_of(x)[-2])
    left = t.reshape(x, (*batch, rows, inner))
    right = t.reshape(_twofold(t, y), (*batch, inner, dim(2 * columns)))
    promise = Promise((*batch, rows, dim(2 * columns)), t.dtype)
    return t.reshape(t.operator("MatMul", left, right, results=[promise]), t.shape)


def _twofold(t: Translation, y: str) -> str:
    """``[..., k, n, 2]`` -> ``[..., k, 2, n, 2]``: what the parts of ``x[..., k]`` are multiplied with."""
    *batch, inner, columns, _ = t.shape_of(y)
    out = t.graph.add_array("factor", (*batch, inner, 2, columns, 2), t.dtype)
    reads = {f"y{p}": (y, lambda *i, p=p: (*i[:-3], i[-2], p)) for p in (0, 1)}

    def element(i: tuple[sympy.Symbol, ...], y0: sympy.Expr, y1: sympy.Expr) -> sympy.Expr:
        of_real = scalar.select(scalar.eq(i[-1], 0), y0, y1)
        of_imaginary = scalar.select(scalar.eq(i[-1], 0), -y1, y0)
        return scalar.select(scalar.eq(i[-3], 0), of_real, of_imaginary)

    t.b.map(t.shape_of(out), reads, {"out": (out, lambda *i: i)}, element, label="factor")
    return out

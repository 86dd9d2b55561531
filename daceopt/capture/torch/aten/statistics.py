"""Variances, deviations and norms."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import dace
import sympy
import torch

from daceopt.capture.torch.aten.reduction import axes_of, reduced_shape
from daceopt.capture.torch.calls import Number
from daceopt.capture.torch.table import translates
from daceopt.capture.torch.translation import Translation
from daceopt.errors import Unsupported
from daceopt.ir.scalar import scalar, types
from daceopt.ir.scalar.dims import Dim
from daceopt.ir.scalar.types import DType
from daceopt.ops.families.moments import centred_sums, variance
from daceopt.ops.families.reduction import element_count, mean

Scalar = Callable[[Any], Any]

# -------------------------------------------------------------------- variances


@translates("var.correction", "std.correction", "var_mean.correction", "std_mean.correction", derivative="aten")
def moments(
    t: Translation, self: str, dim: list[int] | None, correction: Number | None, keepdim: bool
) -> str | tuple[str, str]:
    """The variance or the deviation, and the mean where that is a result: in two passes.

    Sums of elements and squares of a deviation need not be in the range of the elements: they are doubles.
    """
    b, axes, wide = t.b, axes_of(t, self, dim), dace.float64
    x = t.cast(self, wide)
    count = element_count(t.graph, x, axes)
    centre = mean(b, None, x, axes=axes, keepdims=True)
    square, drift = centred_sums(b, x, centre, axes, keepdim)
    divided = _divide(count, 1 if correction is None else correction, wide)
    n = scalar.cast(count, wide)

    def deviation(s: sympy.Expr, d: sympy.Expr) -> sympy.Expr:
        moment = divided(variance(s, d, n))
        return sympy.sqrt(moment) if t.label.startswith("std") else moment

    spread = t.kernel(deviation, square, drift)
    if len(t.promised) == 1:
        return spread
    flat = b.reshape(_collect(t, x, centre, axes), reduced_shape(t.shape_of(x), axes, keepdim))
    return spread, t.cast(flat, t.dtype)


def _collect(t: Translation, x: str, centre: str, axes: Sequence[int]) -> str:
    """A mean as PyTorch has it beside a variance, where it is collected from distances to the mean so far: one to an
    infinite mean is not a number, so the mean is infinite only where the last element alone is."""
    shape, result_shape = t.shape_of(x), t.shape_of(centre)
    if not axes or 0 in shape:
        return centre
    count = t.b.reduce(
        "sum", lambda v: scalar.select(scalar.isinf(v), 1, 0), x, axes=axes, keepdims=True, dtype=dace.float64
    )
    last = t.graph.add_array("last", result_shape, dace.float64)
    t.b.map(
        result_shape,
        {"v": (x, lambda *i: tuple(shape[k] - 1 if k in axes else e for k, e in enumerate(i)))},
        {"out": (last, lambda *i: i)},
        lambda i, v: v,
    )

    def fn(m: sympy.Expr, c: sympy.Expr, v: sympy.Expr) -> sympy.Expr:
        is_last = scalar.logical_and(scalar.eq(c, 1), scalar.isinf(v))
        return scalar.select(scalar.logical_or(scalar.eq(c, 0), is_last), m, scalar.nan())

    return str(t.b.elementwise(fn, centre, count, last, dtype=dace.float64))


def _divide(count: Dim, correction: object, dtype: DType) -> Scalar:
    """Division by ``max(0, count - correction)``, where 0 / 0 is NaN."""
    divisor = sympy.sympify(count) - sympy.nsimplify(correction)
    if not divisor.is_number:
        return lambda s: s / scalar.maximum(scalar.cast(divisor, types.compute_type(dtype)), 0)
    return lambda s: s / divisor if divisor > 0 else s * scalar.infinity()


# -------------------------------------------------------------------- norms


@translates("linalg_vector_norm", derivative="aten")
def vector_norm(
    t: Translation, self: str, ord: Number, dim: list[int] | None, keepdim: bool, dtype: torch.dtype | None
) -> str:
    return _norm(t, lambda v: v, [t.cast(self, t.dtype)], ord, axes_of(t, self, dim), keepdim)


@translates("dist", derivative="aten")
def dist(t: Translation, self: str, other: str, p: Number) -> str:
    wide = self if len(t.shape_of(self)) >= len(t.shape_of(other)) else other
    return _norm(t, lambda v, w: v - w, [self, other], p, axes_of(t, wide, None), False)


def _norm(
    t: Translation, fn: Callable[..., sympy.Expr], arrays: Sequence[str], p: Number, axes: Sequence[int], keep: bool
) -> str:
    if isinstance(p, (bool, complex, str)):
        raise Unsupported(f"a norm of order {p!r}; expected a real number")
    kind, term, root = _parts(float(p))
    wide = types.compute_type(t.dtype)
    total = t.b.reduce(kind, lambda *v: scalar.cast(term(fn(*v)), wide), *arrays, axes=axes, keepdims=keep, dtype=wide)
    if root is None:
        return t.cast(total, t.dtype)
    return t.kernel(root, total)


def _parts(p: float) -> tuple[str, Scalar, Scalar | None]:
    """How a norm reduces, what, and what then becomes of it."""
    if math.isinf(p):
        return ("max" if p > 0 else "min"), sympy.Abs, None
    if p == 0:
        return "sum", lambda v: scalar.select(scalar.ne(v, 0), 1, 0), None
    if p == 1:
        return "sum", sympy.Abs, None
    if p == 2:
        return "sum", lambda v: v * v, sympy.sqrt
    exponent = sympy.Float(p, 17)
    return "sum", lambda v: scalar.power(sympy.Abs(v), exponent), lambda s: scalar.power(s, sympy.Float(1 / p, 17))

"""Digits of a loop's parameter: what one loop that was made of several says about each of them."""

from __future__ import annotations

from typing import Any

import sympy

from daceopt.ir.scalar.dims import Dim, dim
from daceopt.ir.scalar.functions import idiv, pymod


def digit(x: Dim, divisor: Dim, radix: Dim | None) -> Any:
    """``x // divisor % radix``: what one loop made of several says about one of them; the outermost has no radix."""
    below = x if divisor == 1 else idiv(x, divisor)
    return below if radix is None else pymod(below, radix)


def as_digit(expr: Dim) -> tuple[Any, Dim, Dim | None]:
    """``(x, divisor, radix)`` of :func:`digit`; any other expression is a digit of itself."""
    radix = None
    if isinstance(expr, pymod):
        expr, radix = expr.args[0], dim(expr.args[1])
    if isinstance(expr, idiv):
        return expr.args[0], dim(expr.args[1]), radix
    return expr, 1, radix


def in_terms_of(expr: object, mapping: dict[Any, Any]) -> Any:
    """A digit of a digit is a digit."""
    x, divisor, radix = as_digit(expr)
    new = mapping.get(x, x.xreplace(mapping) if isinstance(x, sympy.Expr) else x)
    y, step, whole = as_digit(new)
    if x is new or (divisor == 1 and radix is None):
        return digit(new, divisor, radix)
    if radix is None and whole is not None:
        radix = dim(sympy.cancel(sympy.sympify(whole) / divisor))
    return digit(y, dim(step * divisor), radix)

"""Integer expressions as affine forms over chosen symbols: the one place that takes an index apart."""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import sympy

from daceopt.ir.scalar.dims import Dim, dim
from daceopt.ir.scalar.symbols import Parameter


class Affine(NamedTuple):
    """``constant + sum(factor * symbol) + opaque``: numbers or sizes as factors, each symbol once.

    ``opaque`` is what has no such form: products of the symbols, floors of them, their minima.
    """

    terms: tuple[tuple[sympy.Symbol, Dim], ...]
    constant: Dim = 0
    opaque: Dim = 0

    @property
    def is_exact(self) -> bool:
        return self.opaque == 0

    @property
    def is_integral(self) -> bool:
        """Is it exact, with numbers as factors?"""
        return self.is_exact and all(isinstance(factor, int) for _, factor in self.terms)

    @property
    def factors(self) -> dict[sympy.Symbol, Dim]:
        """Symbol -> factor."""
        return dict(self.terms)

    def single(self) -> tuple[sympy.Symbol, Dim] | None:
        """The symbol and its factor where there is just one, and nothing opaque."""
        return self.terms[0] if len(self.terms) == 1 and self.is_exact else None


def affine(expr: Dim, symbols: Collection[sympy.Symbol] | None = None) -> Affine:
    """``expr`` as an affine form over ``symbols``, others being sizes; None: over all iteration parameters in it."""
    if isinstance(expr, (int, np.integer)):
        return Affine((), int(expr))
    expr = expr if isinstance(expr, sympy.Basic) else sympy.sympify(expr)
    if expr.is_Symbol:
        is_term = isinstance(expr, Parameter) if symbols is None else expr in symbols
        return Affine(((expr, 1),)) if is_term else Affine((), expr)
    return _of_parameters(expr) if symbols is None else _affine(expr, symbols)


@lru_cache(1 << 14)
def _of_parameters(expr: sympy.Expr) -> Affine:
    return _affine(expr, {s for s in expr.free_symbols if isinstance(s, Parameter)})


def _affine(expr: sympy.Expr, symbols: Collection[sympy.Symbol]) -> Affine:
    linear: dict[sympy.Symbol, Dim] = {}
    constant: Dim = 0
    opaque: Dim = 0
    for term in sympy.Add.make_args(sympy.expand(expr)):
        moving = [s for s in term.free_symbols if s in symbols]
        factor = dim(term / moving[0]) if len(moving) == 1 else 0
        if not moving:
            constant = dim(constant + term)
        elif len(moving) > 1 or moving[0] in getattr(factor, "free_symbols", ()):
            opaque = dim(opaque + term)
        else:
            linear[moving[0]] = dim(linear.get(moving[0], 0) + factor)
    return Affine(tuple((s, f) for s, f in linear.items() if f != 0), constant, opaque)


def same(a: Dim, b: Dim) -> bool:
    """Are two sizes the same number for all values of their symbols?"""
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    return bool(sympy.expand(sympy.sympify(a) - b) == 0)


def quotient(a: Dim, b: Dim) -> Dim | None:
    """``a / b`` when it is a whole number (or a polynomial in the sizes with whole factors), else None."""
    if isinstance(a, int) and isinstance(b, int):
        return a // b if b and a % b == 0 else None
    if b == 0:
        return None
    ratio = sympy.cancel(sympy.sympify(a) / b)
    if not ratio.free_symbols:
        return dim(ratio) if ratio.is_Integer else None
    whole = ratio.is_polynomial() and all(c.is_Integer for c in sympy.Poly(ratio, *ratio.free_symbols).coeffs())
    return dim(sympy.expand(ratio)) if whole else None

"""Signs that an expression over sizes shows by its form alone: a sum of products of what is 0 or more.

This is the first and cheapest rule of the prover (``sizes.py``), which is what others ask.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import dace
import sympy

from daceopt.ir.scalar.functions import absolute, idiv, maximum, minimum, pymod


def is_natural(expr: sympy.Expr) -> bool:
    """Is each term of the SymPy expression ``expr``, which is expanded, 0 or more for all sizes?"""
    return all(_is_natural_term(term) for term in sympy.Add.make_args(expr))


def is_positive(expr: sympy.Expr) -> bool:
    """Is it 0 or more in each term, and has it a term that is a number above 0?"""
    constant = expr.as_coeff_Add()[0]
    return bool(constant.is_extended_positive) and is_natural(expr)


def _is_natural_term(term: sympy.Expr) -> bool:
    if term.is_Symbol:
        return _is_size(term)
    number, rest = term.as_coeff_Mul()
    return bool(number >= 0) and all(map(_is_natural_factor, sympy.Mul.make_args(rest)))


def _is_size(symbol: sympy.Symbol) -> bool:
    """Sizes, and loops that count from 0, are symbols of DaCe's; others, as the values in scalar code, may be less."""
    return isinstance(symbol, dace.symbolic.symbol) or symbol.is_nonnegative is True


@lru_cache(1 << 12)
def _is_natural_factor(factor: sympy.Expr) -> bool:
    if factor.is_Symbol:
        return _is_size(factor)
    if factor.is_Rational:
        return bool(factor >= 0)
    rule = _RULES.get(factor.func)
    return rule is not None and rule(*factor.args)


def _of_argument(value: sympy.Expr) -> bool:
    return is_natural(sympy.expand(value))


def _of_all(*values: sympy.Expr) -> bool:
    return all(map(_of_argument, values))


def _of_any(*values: sympy.Expr) -> bool:
    return any(map(_of_argument, values))


def _power(base: sympy.Expr, exponent: sympy.Expr) -> bool:
    if not exponent.is_Integer:
        return False
    return bool(exponent.is_even and base.is_real) or (exponent > 0 and _of_argument(base))


_RULES: dict[type, Callable[..., bool]] = {
    sympy.Add: lambda *terms: _of_argument(sympy.Add(*terms)),
    sympy.Pow: _power,
    sympy.floor: _of_argument,
    sympy.ceiling: _of_argument,
    sympy.Min: _of_all,
    sympy.Max: _of_any,
    sympy.Abs: lambda value: True,
    minimum: _of_all,
    maximum: _of_any,
    absolute: lambda value: True,
    idiv: _of_all,
    pymod: lambda value, divisor: _of_argument(divisor),
}

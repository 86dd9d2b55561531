"""Other roundings of an execution: what is computed moves by a unit in its last place, at random.

How far results of several such executions stand apart is what rounding explains, also where large terms cancel and the
result itself is rounding alone (Monte Carlo arithmetic: Parker 1997; CESTAC: Vignes 1993). What is only chosen, copied
or compared is exact, and so it stays.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import sympy

from daceopt.ir.scalar.functions import ScalarFunction

_ROUNDED = (sympy.Add, sympy.Mul, sympy.Pow, sympy.Function)
_EXACT_RULES = ("compare", "logical", "select", "load", "checked", "literal", "uniform")
_EXACT_NAMES = ("maximum", "minimum", "sign", "absolute", "copysign", "floor", "ceil", "trunc", "round_even", "fmod")


class Disturbance:
    """A source of roundings for one execution; ``sums``: relative, what sums of products may be off by, where less
    precision than that of their type was requested."""

    def __init__(self, seed: int, sums: float = 0.0) -> None:
        self._generator = np.random.default_rng(seed)
        self._sums = sums

    def scalar(self, expr: sympy.Expr, value: np.ndarray) -> np.ndarray:
        """The results of scalar code, each element rounded in another way."""
        return value if _is_exact(expr) else self._move(value, np.abs(value))

    def sums(self, value: np.ndarray) -> np.ndarray:
        """The results of sums of many products, whose error is one of the terms: of typical magnitude at least."""
        if value.dtype.kind != "f" or not value.size:
            return value
        with np.errstate(all="ignore"):
            typical = np.sqrt(np.square(value, dtype=np.float64).mean())
        return self._move(value, np.where(value == 0, 0, np.fmax(np.abs(value), typical)), self._sums)

    def _move(self, value: np.ndarray, magnitude: np.ndarray, unit: float = 0.0) -> np.ndarray:
        if value.dtype.kind != "f":
            return value
        steps = self._generator.integers(-1, 2, value.shape)
        with np.errstate(all="ignore"):
            return (value + steps * max(unit, float(np.finfo(value.dtype).eps)) * magnitude).astype(value.dtype)


@cache
def _is_exact(expr: sympy.Expr) -> bool:
    """Is the value one of the operands, or a small whole number?"""
    return all(not isinstance(e, _ROUNDED) or _keeps(e) for e in sympy.preorder_traversal(expr))


def _keeps(expr: sympy.Expr) -> bool:
    if isinstance(expr, ScalarFunction):
        name = type(expr).__name__
        return expr.row.rule in _EXACT_RULES or name.startswith(("cast", *_EXACT_NAMES))
    return isinstance(expr, sympy.Abs) or (isinstance(expr, sympy.Mul) and expr.args[0] == -1 and len(expr.args) == 2)

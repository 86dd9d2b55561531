"""Formulas about sizes, which PyTorch keeps in a normal form, to find them again."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import sympy

_MOST = 256
"""Clauses of a formula that is brought into its normal form: of memory that overlaps in no axis there may be millions,
and SymPy takes minutes for a few thousand."""


def normal_form(original: Callable[..., Any], expr: Any) -> Any:
    """PyTorch's normal form, a conjunction of clauses; a formula that has too many stays as it is."""
    return expr if clauses(expr, True) > _MOST else original(expr)


def clauses(expr: Any, truth: bool) -> int:
    """How many clauses the conjunctive normal form of a formula has at most, or (``truth`` False) that of its
    negation."""
    if isinstance(expr, sympy.Not):
        return clauses(expr.args[0], not truth)
    if not isinstance(expr, sympy.And | sympy.Or):
        return 1
    counts = [clauses(one, truth) for one in expr.args]
    return sum(counts) if isinstance(expr, sympy.And) is truth else math.prod(counts)

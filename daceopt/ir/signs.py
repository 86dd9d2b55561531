"""Whether an expression over sizes is never negative: what bounds of loops and regions of arrays turn on."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import islpy as isl
import sympy

from daceopt.errors import Unsupported
from daceopt.ir.affine_isl import CONTEXT, SizeParameters, functions_on, is_natural, within


def surely(expr: Any) -> bool:
    """Is ``expr`` 0 or more for all sizes? SymPy says so, or isl proves it; False where neither knows."""
    return _surely(sympy.expand(expr))


@lru_cache(1 << 12)
def _surely(expr: Any) -> bool:
    if not expr.free_symbols:
        return bool(expr >= 0)
    return is_natural(expr) or _proven(expr, {})


def surely_in(expr: Any, extents: dict[Any, Any]) -> bool:
    """The same of an expression in loops that run from 0 to below their ``extents``."""
    smallest = _least(expr, extents)
    return (smallest is not None and surely(smallest)) or _proven(sympy.expand(expr), extents)


def _proven(expr: Any, extents: dict[Any, Any]) -> bool:
    """By isl, at all points of the loops and for all sizes."""
    space = isl.Space.set_alloc(CONTEXT, 0, len(extents))
    sizes = SizeParameters(frozenset(extents))
    of, values = functions_on(sizes, space, extents)
    points = space.universe_set()
    try:
        for p, extent in extents.items():
            points = within(points, of, values[p], [extent])
        holds = of.of(expr).nonneg_set()
    except Unsupported:
        return False
    for found in (points.get_space(), holds.get_space()):
        points = points.intersect_params(sizes.possible(found))
    return bool(points.is_subset(holds))


def _least(expr: Any, extents: dict[Any, Any]) -> Any:
    """The smallest value of what is affine in loops; None where it is not."""
    found = sympy.expand(expr)
    for p, extent in extents.items():
        factor = found.coeff(p)
        if p in sympy.expand(found - factor * p).free_symbols:
            return None
        if not surely(factor) and not surely(-factor):
            return None
        found = sympy.expand(found.xreplace({p: sympy.S.Zero if surely(factor) else sympy.sympify(extent) - 1}))
    return found

"""Sizes that are divided by numbers and rounded down: written as quotient and rest, which are both 0 or more."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import sympy


def without_floors(expr: Any, positive: Collection[Any] = ()) -> Any:
    """``expr`` where each size ``n`` of which it has ``floor(n / k)`` is ``k * q + r``: polynomial where it was but for
    the floors. ``positive``: expressions that are 1 or more; of a floor among them, ``q`` is ``1 + q``.

    The rest is below ``k``, which the result does not say: what holds for all ``q`` and ``r`` holds for all ``n``. What
    has other floors stays.
    """
    floors = {f for e in (expr, *positive) if isinstance(e, sympy.Expr) for f in e.atoms(sympy.floor)}
    if not floors:
        return expr
    found: dict[Any, tuple[Any, Any]] = {}  # size -> what it is divided by, rounded down
    for floor in floors:
        size = next(iter(floor.free_symbols), None)
        if len(floor.free_symbols) != 1 or not (size / floor.args[0]).is_Integer or size in found:
            return expr
        found[size] = size / floor.args[0], floor
    expr = sympy.sympify(expr)
    for size, (k, floor) in found.items():
        q, r = (sympy.Dummy(f"{size}_{what}", integer=True, nonnegative=True) for what in ("quotient", "rest"))
        count = q + 1 if floor in positive else q
        expr = expr.xreplace({floor: count}).xreplace({size: k * count + r})
    return sympy.expand(expr)

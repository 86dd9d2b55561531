"""Conditions on loops and sizes: relations that stay as they were written, and what can be said about them.

SymPy would decide or turn round a relation as soon as it can; here ``3 < i0`` stays that, so that it prints as written.
Quotients are floors in a condition, for what is divided may be negative where the condition does not hold.
"""

from __future__ import annotations

from collections.abc import Iterable

import sympy
from sympy.core.relational import Relational

from daceopt.errors import IllegalSchedule
from daceopt.ir.scalar.dims import Dim
from daceopt.ir.scalar.functions import idiv, pymod

RELATIONS: dict[str, type] = {"<": sympy.Lt, "<=": sympy.Le, ">": sympy.Gt, ">=": sympy.Ge, "==": sympy.Eq}


def relation(left: Dim, operator: str, right: Dim) -> sympy.Basic:
    """``left operator right``, undecided; ``operator`` is one of ``RELATIONS``."""
    return RELATIONS[operator](_whole(left), _whole(right), evaluate=False)


def conjunction(condition: sympy.Basic | Iterable[sympy.Basic]) -> tuple[sympy.Basic, ...]:
    """The relations that must all hold, each once. Raises IllegalSchedule for what is no such condition."""
    parts = condition if isinstance(condition, (tuple, list)) else [condition]
    relations = dict.fromkeys(one for c in parts for one in _relations(c))
    if not relations:
        raise IllegalSchedule("a guard without a condition; expected at least one relation")
    return tuple(relations)


def _relations(condition: sympy.Basic) -> Iterable[sympy.Basic]:
    if isinstance(condition, sympy.And):
        return [one for c in sorted(condition.args, key=str) for one in _relations(c)]
    if condition == sympy.true:
        return []
    if not isinstance(condition, Relational) or condition.rel_op not in RELATIONS:
        expected = f"relations ({', '.join(RELATIONS)}) of loops and sizes, all of which must hold"
        raise IllegalSchedule(f"a guard with the condition {condition}; expected {expected}")
    return [relation(condition.lhs, condition.rel_op, condition.rhs)]


def substitute(condition: sympy.Basic, mapping: dict[sympy.Symbol, sympy.Expr]) -> sympy.Basic:
    """The relation in other loop parameters."""
    left, right = (side.xreplace(mapping) for side in (condition.lhs, condition.rhs))
    return relation(left, condition.rel_op, right)


def at_least_zero(condition: sympy.Basic) -> list[sympy.Expr]:
    """The expressions that are 0 or more just where the relation of integers holds."""
    difference = sympy.expand(condition.lhs - condition.rhs)
    by_operator = {
        "<": [-difference - 1],
        "<=": [-difference],
        ">": [difference - 1],
        ">=": [difference],
        "==": [difference, -difference],
    }
    return by_operator[condition.rel_op]


def _whole(expr: Dim) -> sympy.Expr:
    expr = sympy.sympify(expr)
    if expr.has(sympy.Mod):
        expr = expr.replace(sympy.Mod, pymod)
    return expr.replace(idiv, lambda a, b: sympy.floor(a / b)) if expr.has(idiv) else expr

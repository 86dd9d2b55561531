"""Statements behind guards: in loops that begin and end where the guards let them, with what conditions are left.

``for t < T1 + T2: if T1 <= t:`` is a loop over ``T2`` iterations that counts from ``T1``. Side by side in one loop,
statements are in loops of their own all the same, and what is known of loops without guards decides about them.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Several
from dataclasses import dataclass, replace
from typing import Any

import sympy

from daceopt.ir.scalar.affine import affine
from daceopt.ir.scalar.digits import in_terms_of
from daceopt.ir.scalar.dims import Dim, dim
from daceopt.ir.scalar.functions import idiv, pymod
from daceopt.ir.scalar.sizes import ALL_SIZES
from daceopt.ir.scalar.symbols import Parameter
from daceopt.ir.schedule import conditions
from daceopt.ir.schedule.schedule import Do, Guard, Loop, Param, Tree


@dataclass(frozen=True)
class Restricted:
    """``do`` in ``loops``, whose parameters count from 0: that of a loop of the schedule is ``starts`` more.

    ``conditions``: what still must hold, in the parameters of ``loops``.
    """

    do: Do
    loops: tuple[Loop, ...]
    starts: dict[Param, Dim]
    conditions: tuple[sympy.Basic, ...]


def conditions_in(around: Iterable[Tree]) -> list[sympy.Basic]:
    """All that the guards among ``around`` demand."""
    return [c for node in around if isinstance(node, Guard) for c in node.condition]


def restrict_by_guards(do: Do, around: Several[Tree]) -> Restricted:
    """``do`` inside of the nodes ``around`` with its loops restricted by its guards as far as that is a loop again."""
    result = Restricted(do, tuple(n for n in around if isinstance(n, Loop)), {}, ())
    params = {loop.param for loop in result.loops}
    for condition in conditions_in(around):
        for bound in conditions.at_least_zero(condition):
            result = _apply_bound(result, bound.xreplace(_shifts(result)), params, condition)
    return result


@dataclass(frozen=True)
class Branches:
    """Neighbours of which at most one runs: each holds for an interval of one loop that ends where the next begins, or
    before."""

    guards: tuple[Guard, ...]


def in_branches(trees: Iterable[object]) -> list[Any]:
    """Children of a sequence, neighbouring guards put together where they are branches."""
    branches: list[Any] = []
    for tree in trees:
        last = branches[-1] if branches else None
        before = last.guards[-1] if isinstance(last, Branches) else last
        if isinstance(before, Guard) and isinstance(tree, Guard) and _follows(before, tree):
            branches[-1] = Branches((*last.guards, tree) if isinstance(last, Branches) else (before, tree))
        else:
            branches.append(tree)
    return branches


def _follows(one: Guard, other: Guard) -> bool:
    first, second = _interval(one), _interval(other)
    if first is None or second is None or first[0] != second[0]:
        return False
    (_, _, end), (_, start, stop) = first, second
    ordered = end is not None and ALL_SIZES.is_natural(start - end)
    return ordered and (stop is None or ALL_SIZES.is_natural(stop - start))


def start_of(guard: Guard) -> tuple[Param, Dim]:
    """The loop of a branch, and the first of its iterations in which it runs."""
    interval = _interval(guard)
    assert interval is not None
    return interval[0], interval[1]


def _interval(guard: Guard) -> tuple[Param, Dim, Dim | None] | None:
    """``(loop, first, end)`` where a guard is just ``first <= loop < end``; ``end`` None: to the last."""
    bounds = [b for c in guard.condition for b in conditions.at_least_zero(c)]
    params = {s for b in bounds for s in b.free_symbols if isinstance(s, Parameter)}
    forms = [affine(b, params) for b in bounds]
    if len(params) != 1 or not all(f.is_exact and set(f.factors.values()) <= {1, -1} for f in forms):
        return None
    (param,) = params
    firsts = [dim(-f.constant) for f in forms if f.factors.get(param) == 1]
    ends = [dim(f.constant + 1) for f in forms if f.factors.get(param) == -1]
    if len(firsts) > 1 or len(ends) > 1 or len(firsts) + len(ends) < len(forms):
        return None
    return param, firsts[0] if firsts else 0, ends[0] if ends else None


def _shifts(statement: Restricted) -> dict[sympy.Symbol, sympy.Expr]:
    return {p: p + start for p, start in statement.starts.items()}


def _apply_bound(statement: Restricted, bound: sympy.Expr, params: set[Param], condition: sympy.Basic) -> Restricted:
    """``statement`` where also ``bound`` is 0 or more."""
    loop = next((loop for loop in statement.loops if bound.free_symbols & params == {loop.param}), None)
    form = None if loop is None else affine(bound, {loop.param})
    if loop is not None and form is not None and form.is_exact:
        factor, constant = form.factors.get(loop.param), sympy.sympify(form.constant)
        if factor == 1 and ALL_SIZES.is_natural(constant):
            return statement
        if factor == 1 and ALL_SIZES.is_natural(-constant):
            return _from(statement, loop, dim(-constant))
        if factor == -1 and ALL_SIZES.is_natural(constant + 1 - loop.extent):
            return statement
        if factor == -1 and ALL_SIZES.is_natural(loop.extent - constant - 1):
            return replace(statement, loops=_with(statement.loops, replace(loop, extent=dim(constant + 1))))
    shifted = conditions.substitute(condition, _shifts(statement))
    return replace(statement, conditions=tuple(dict.fromkeys([*statement.conditions, shifted])))


def _from(statement: Restricted, loop: Loop, start: Dim) -> Restricted:
    """The iterations of ``loop`` from ``start`` on, which count from 0 again."""
    p, later = loop.param, {loop.param: loop.param + start}
    rest = None if loop.rest is None else dim(loop.rest - start)
    short = replace(loop, extent=dim(loop.extent - start), rest=rest)
    loops = (
        replace(n, rest=dim(sympy.expand(sympy.sympify(n.rest).xreplace(later)))) if n.rest is not None else n
        for n in _with(statement.loops, short)
    )
    return Restricted(
        replace(statement.do, index=tuple(_shift(e, later) for e in statement.do.index)),
        tuple(loops),
        {**statement.starts, p: dim(statement.starts.get(p, 0) + start)},
        tuple(conditions.substitute(c, later) for c in statement.conditions),
    )


def split_merged(do: Do, loops: Several[Loop], only_open: bool = False) -> tuple[Do, list[tuple[Loop, ...]]]:
    """For each loop, itself, or the two over blocks of tiles that were made one: ``4*(p // n) + i`` in a loop of
    ``m*n`` iterations is ``4*q + i`` in one of ``m``, with ``p % n`` in one of ``n`` inside; and ``do`` in these.

    ``only_open``: where ``n`` is no number.
    """
    groups: list[tuple[Loop, ...]] = [(loop,) for loop in loops]
    in_sums = any(isinstance(e, sympy.Add) and e.has(idiv, pymod) for e in do.index)
    for k, loop in enumerate(loops if in_sums else ()):
        divisor = _parting(do, [n for group in groups for n in group], loop)
        count = None if divisor is None else sympy.cancel(sympy.sympify(loop.extent) / divisor)
        if count is None or sympy.fraction(count)[1] != 1 or loop.rest is not None:
            continue
        if only_open and isinstance(divisor, int):
            continue
        p, q = loop.param, Parameter(f"{loop.param}_digit")
        mapping = {idiv(p, divisor): q, pymod(p, divisor): p}
        groups = [tuple(_substitute_rest(n, mapping) for n in group) for group in groups]
        groups[k] = (replace(loop, param=q, extent=dim(count)), replace(loop, extent=dim(divisor)))
        do = replace(do, index=tuple(sympy.sympify(e).xreplace(mapping) for e in do.index))
    return do, groups


def _substitute_rest(loop: Loop, mapping: dict[sympy.Expr, sympy.Symbol]) -> Loop:
    return loop if loop.rest is None else replace(loop, rest=dim(sympy.sympify(loop.rest).xreplace(mapping)))


def _parting(do: Do, loops: Several[Loop], loop: Loop) -> Dim | None:
    """What divides ``loop.param`` wherever it is, where that is a part of a sum."""
    values = [sympy.sympify(e) for e in (*do.index, *(n.rest for n in loops if n.rest is not None))]
    digits = {d for e in values for d in e.atoms(idiv, pymod) if d.args[0] == loop.param}
    divisors = {d.args[1] for d in digits}
    bare = [e.xreplace(dict.fromkeys(digits, sympy.S.Zero)) for e in values]
    if len(divisors) != 1 or any(loop.param in e.free_symbols for e in bare) or digits >= set(values):
        return None
    return dim(next(iter(divisors)))


def _shift(value: sympy.Expr, later: dict[sympy.Symbol, sympy.Expr]) -> sympy.Expr:
    new = in_terms_of(value, later)
    return new if isinstance(new, sympy.Function) else sympy.expand(new)


def _with(loops: Several[Loop], new: Loop) -> tuple[Loop, ...]:
    return tuple(new if loop.param == new.param else loop for loop in loops)

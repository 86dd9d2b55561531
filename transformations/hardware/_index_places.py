"""Integer expressions over the loops of a kernel, made simpler by what holds in a part of their iterations."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from collections.abc import Sequence as Several
from typing import Any

import sympy

from daceopt.ir.polyhedral.index_regions import IndexRegion
from daceopt.ir.scalar import scalar
from daceopt.ir.scalar.dims import Dim
from daceopt.ir.scalar.functions import CLASSES, ScalarFunction

Cut = tuple[sympy.Symbol, Dim]  # a loop's parameter, and the first value of the upper part

_PERIODS = (0, -1, 1)  # multiples at which something wraps where it is not known how many there are


class PlaceSimplifier:
    """Decides minima, distances, remainders, conditions in ``region``; what is not decided says where to cut it."""

    def __init__(self, region: IndexRegion, cuttable: Collection[sympy.Symbol], most: int):
        self._region, self._cuttable, self._most = region, cuttable, most

    def simple(self, expr: sympy.Expr, cuts: list[Cut]) -> sympy.Expr:
        """``expr``, with loops and sizes as its only symbols, in as few functions as its region allows; ``cuts`` gets
        what would decide more."""
        if not expr.args:
            return expr
        if isinstance(expr, scalar.select):
            return self._select(expr, cuts)
        own: list[Cut] = []
        args = [self.simple(a, own) for a in expr.args]
        again = expr if all(a is b for a, b in zip(args, expr.args)) else expr.func(*args)
        if isinstance(expr, ScalarFunction) and expr.row.rule == "logical":
            again = logical(expr, args)
            cuts += [] if again.is_Integer else own
            return again
        cuts += own
        rule = _RULES.get(type(expr))
        if rule is None or any(a.has(ScalarFunction) or not a.is_integer for a in args):
            return again
        new = rule(self, args, cuts)
        return again if new is None else new

    def within(self, place: sympy.Expr, extent: Dim) -> bool:
        """Is it 0 or more, and less than ``extent``, in all of the region?"""
        return self._holds(place) and self._holds(extent - 1 - place)

    def _holds(self, expr: sympy.Expr) -> bool:
        return self._region.natural(sympy.expand(expr)) is True

    def _select(self, expr: sympy.Expr, cuts: list[Cut]) -> sympy.Expr:
        condition = self.simple(expr.args[0], cuts)
        if condition.is_Integer:
            return self.simple(expr.args[1] if condition else expr.args[2], cuts)
        return expr.func(condition, *(self.simple(a, cuts) for a in expr.args[1:]))

    def _sign(self, expr: sympy.Expr, cuts: list[Cut]) -> bool | None:
        """Is it 0 or more in all of the region, or nowhere?"""
        expr = sympy.expand(expr)
        natural = self._region.natural(expr)
        if natural is None:
            cut = self._region.crossing(expr)
            cuts += [cut] if cut is not None and cut[0] in self._cuttable else []
        return natural

    def _minimum(self, args: Several[sympy.Expr], cuts: list[Cut]) -> sympy.Expr | None:
        return self._extreme(args[0], args[1], args[1] - args[0], cuts)

    def _maximum(self, args: Several[sympy.Expr], cuts: list[Cut]) -> sympy.Expr | None:
        return self._extreme(args[0], args[1], args[0] - args[1], cuts)

    def _extreme(self, first: sympy.Expr, second: sympy.Expr, ahead: Any, cuts: list[Cut]) -> sympy.Expr | None:
        """The first where ``ahead`` is 0 or more, the second where it is 0 or less."""
        if self._holds(-ahead):
            return second
        sign = self._sign(ahead, cuts)
        return None if sign is None else first if sign else second

    def _absolute(self, args: Several[sympy.Expr], cuts: list[Cut]) -> sympy.Expr | None:
        return self._extreme(args[0], -args[0], args[0], cuts)

    def _below(self, args: Several[sympy.Expr], cuts: list[Cut]) -> sympy.Expr | None:
        sign = self._sign(args[0] - args[1], cuts)
        return None if sign is None else sympy.Integer(not sign)

    def _at_least(self, args: Several[sympy.Expr], cuts: list[Cut]) -> sympy.Expr | None:
        sign = self._sign(args[0] - args[1], cuts)
        return None if sign is None else sympy.Integer(sign)

    def _equal(self, args: Several[sympy.Expr], cuts: list[Cut]) -> sympy.Expr | None:
        over = self._sign(args[0] - args[1], cuts)
        under = over if over is None else self._sign(args[1] - args[0], cuts)
        return None if under is None else sympy.Integer(bool(over and under))

    def _unequal(self, args: Several[sympy.Expr], cuts: list[Cut]) -> sympy.Expr | None:
        equal = self._equal(args, cuts)
        return None if equal is None else 1 - equal

    def _remainder(self, args: Several[sympy.Expr], cuts: list[Cut]) -> sympy.Expr | None:
        multiple = self._multiple(args[0], args[1], cuts)
        return None if multiple is None else sympy.expand(args[0] - multiple * args[1])

    def _quotient(self, args: Several[sympy.Expr], cuts: list[Cut]) -> sympy.Expr | None:
        """It is rounded towards 0."""
        return self._multiple(args[0], args[1], cuts) if self._holds(args[0]) else None

    def _multiple(self, place: sympy.Expr, period: sympy.Expr, cuts: list[Cut]) -> sympy.Expr | None:
        """How many whole periods there are below ``place``."""
        if not self._holds(period - 1):
            return None
        periods, rest = _whole_periods(place, period)
        for k in self._multiples(rest, period):
            from_here = self._sign(rest - k * period, cuts)
            if from_here is None:
                return None
            if from_here and self._sign(rest - (k + 1) * period, cuts) is False:
                return periods + k
        return None

    def _multiples(self, place: sympy.Expr, period: sympy.Expr) -> Iterable[int]:
        """Those that there can be, or the nearest ones where these are not known; none where there are too many."""
        ends = self._region.ends(place)
        if ends is None or not period.is_Integer:
            return _PERIODS if not period.is_Integer else ()
        least, largest = (int(e) // int(period) for e in ends)
        return range(least, largest + 1) if largest - least < self._most else ()


def _whole_periods(place: sympy.Expr, period: sympy.Expr) -> tuple[sympy.Expr, sympy.Expr]:
    """``(n, rest)`` with ``place = n * period + rest``: the terms of parameters that step by whole ones, and others."""
    terms = [term.as_coeff_Mul() for term in sympy.Add.make_args(sympy.expand(place))]
    if not period.is_Integer:
        return sympy.S.Zero, place
    whole = [(factor, p) for factor, p in terms if p.is_Symbol and factor.is_Integer and factor % period == 0]
    periods = sympy.Add(*(factor // period * p for factor, p in whole))
    return periods, sympy.expand(place - periods * period)


def logical(expr: sympy.Expr, args: Several[sympy.Expr]) -> sympy.Expr:
    """Decided operands decide the others, or go."""
    if all(a.is_Integer for a in args):
        return sympy.Integer(int(scalar.evaluate(expr.func(*args), {})))
    for kind, deciding in ((scalar.logical_and, 0), (scalar.logical_or, 1)):
        if isinstance(expr, kind):
            constants = [a for a in args if a.is_Integer]
            if any(int(a) == deciding for a in constants):
                return sympy.Integer(deciding)
            rest = [a for a in args if not a.is_Integer]
            return rest[0] if len(rest) == 1 else expr.func(*args)
    return expr.func(*args)


_RULES: dict[type, Callable[[PlaceSimplifier, Several[sympy.Expr], list[Cut]], sympy.Expr | None]] = {
    scalar.minimum: PlaceSimplifier._minimum,
    scalar.maximum: PlaceSimplifier._maximum,
    scalar.absolute: PlaceSimplifier._absolute,
    scalar.pymod: PlaceSimplifier._remainder,
    scalar.idiv: PlaceSimplifier._quotient,
    scalar.lt: PlaceSimplifier._below,
    scalar.ge: PlaceSimplifier._at_least,
    scalar.gt: lambda self, args, cuts: self._below(args[::-1], cuts),
    scalar.le: lambda self, args, cuts: self._at_least(args[::-1], cuts),
    scalar.eq: PlaceSimplifier._equal,
    scalar.ne: PlaceSimplifier._unequal,
    CLASSES["cast_int64"]: lambda self, args, cuts: args[0],
}

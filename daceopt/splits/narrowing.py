"""Scalar code over a narrower domain: comparisons that are always true or always false there go, and loads whose place
follows from the parameters become plain reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import dace
import sympy

from daceopt.ir.kernel.kernel import Access, Stage
from daceopt.ir.kernel.tasklet import Assignment, eliminate_dead, free_symbols, fresh
from daceopt.ir.scalar import scalar
from daceopt.ir.scalar.affine import affine
from daceopt.ir.scalar.dims import Dim, dim
from daceopt.ir.scalar.sizes import ALL_SIZES

_BELOW = {"lt": (0, 1, 1), "le": (0, 1, 0), "gt": (1, 0, 1), "ge": (1, 0, 0)}  # smaller operand, larger, difference
_EXTREMES = {"maximum": 1, "minimum": 0}


def narrow(stage: Stage, extents: Mapping[sympy.Symbol, Dim]) -> Stage:
    """``stage``, which runs over ``extents`` only, without what never happens there."""
    own_extents = {s: n for s, n in extents.items() if s in stage.params}
    reads, assignments = dict(stage.reads), []
    for a in stage.assignments:
        expr = _Narrowing(own_extents).of(a.expr)
        assignments.append(Assignment(a.symbol, _plain_reads(expr, reads, own_extents), a.dtype))
    live = eliminate_dead(assignments, stage.writes)
    used = {str(s) for s in free_symbols(live)}
    return replace(stage, reads={c: r for c, r in reads.items() if c in used}, assignments=live)


def _plain_reads(expr: sympy.Expr, reads: dict[str, Access], extents: Mapping[sympy.Symbol, Dim]) -> sympy.Expr:
    """Loads at places that are affine in the parameters, as reads of their own."""
    for load in sorted(expr.atoms(scalar.load), key=str):
        access = reads[str(load.args[0])]
        index = _full_index(access, load.args[1:])
        if all(_is_affine(e, extents) for e in index):
            direct = Access(access.array, tuple(dim(e) for e in index))
            conn = next((c for c, r in reads.items() if r == direct), None) or fresh(f"{load.args[0]}_at", reads)
            reads[conn] = direct
            expr = expr.xreplace({load: _like(load, conn)})
    return expr


def _full_index(access: Access, places: Sequence[sympy.Expr]) -> list[Dim | None]:
    rest = iter(places)
    return [next(rest) if e is None else e for e in access.index]


def _like(load: sympy.Expr, conn: str) -> sympy.Symbol:
    """A connector's symbol, with the assumptions that the array's has."""
    return sympy.Symbol(conn, **load.args[0].assumptions0)


def _is_affine(expr: Dim, extents: Mapping[sympy.Symbol, Dim]) -> bool:
    """Is an index linear in the parameters, with sizes, and without a value that is computed?"""
    if isinstance(expr, int):
        return True
    return _is_of_sizes(expr) and not expr.has(sympy.Function) and affine(expr, frozenset(extents)).is_exact


def _is_of_sizes(expr: sympy.Expr) -> bool:
    """Parameters and sizes are DaCe's symbols; values are SymPy's own."""
    return all(isinstance(s, dace.symbolic.symbol) for s in expr.free_symbols)


class _Narrowing:
    """Rewrites expressions over parameters that run from 0 to their extents."""

    def __init__(self, extents: Mapping[sympy.Symbol, Dim]):
        self._inside = ALL_SIZES.inside(extents)

    def of(self, expr: sympy.Expr) -> sympy.Expr:
        if not expr.args or not isinstance(expr, sympy.Expr):
            return expr
        name = type(expr).__name__
        if name == "select":
            return self._select(expr)
        args = [self.of(a) for a in expr.args]
        if name in _BELOW and (answer := self._compare(name, args)) is not None:
            return sympy.Integer(answer)
        if name in _EXTREMES and (answer := self._extreme(name, args)) is not None:
            return answer
        if name == "logical_and" and (answer := self._both(args)) is not None:
            return answer
        return expr if all(a is b for a, b in zip(args, expr.args, strict=True)) else expr.func(*args)

    def _select(self, expr: sympy.Expr) -> sympy.Expr:
        condition = self.of(expr.args[0])
        if condition in (0, 1):
            return self.of(expr.args[2 - int(condition)])
        return expr.func(condition, self.of(expr.args[1]), self.of(expr.args[2]))

    def _compare(self, name: str, args: list[sympy.Expr]) -> bool | None:
        small, large, least = _BELOW[name]
        difference = args[large] - args[small]
        if self._at_least(difference, least):
            return True
        return False if self._at_least(-difference, 1 - least) else None

    def _extreme(self, name: str, args: list[sympy.Expr]) -> sympy.Expr | None:
        if self._at_least(args[0] - args[1], 0):
            return args[1 - _EXTREMES[name]]
        return args[_EXTREMES[name]] if self._at_least(args[1] - args[0], 0) else None

    @staticmethod
    def _both(args: list[sympy.Expr]) -> sympy.Expr | None:
        if 0 in args:
            return sympy.Integer(0)
        rest = [a for a in args if a != 1]
        return rest[0] if len(rest) == 1 else sympy.Integer(1) if not rest else None

    def _at_least(self, value: sympy.Expr, least: int) -> bool:
        """Is an integer expression ``least`` or more for all parameters (and sizes)?"""
        if not _is_of_sizes(value):
            return False
        return self._inside.is_natural(value - least)


def places_settled(stage: Stage, extents: Mapping[sympy.Symbol, Dim]) -> dict[sympy.Symbol, set[int]]:
    """Parameter -> the places along it from which on a comparison of places has another result."""
    params = frozenset(extents)
    settled: dict[sympy.Symbol, set[int]] = {}
    for comparison in (e for a in stage.assignments for e in sympy.preorder_traversal(a.expr)):
        if type(comparison).__name__ not in _BELOW:
            continue
        small, large, least = _BELOW[type(comparison).__name__]
        difference = sympy.expand(comparison.args[large] - comparison.args[small] - least)  # true from 0 on
        if not _is_of_sizes(difference):
            continue
        form = affine(dim(difference), params)
        only, constant = form.single(), form.constant
        if only is not None and only[1] in (1, -1) and isinstance(constant, int):
            settled.setdefault(only[0], set()).add(-constant if only[1] == 1 else constant + 1)
    return settled

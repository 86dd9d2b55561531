"""Parts of an iteration space between bounds that may depend on sizes, and what holds in all of such a part.

Bounds are kept in order for all sizes, by minima and maxima where nothing else is known: a part may have no iterations.
What holds is decided by isl (parametric integer sets: Feautrier 1988; Verdoolaege, isl, ICMS 2010).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from typing import Any

import islpy as isl
import sympy

from daceopt.errors import Unsupported
from daceopt.ir.affine import affine
from daceopt.ir.dims import Dim, dim
from daceopt.ir.graph import Graph
from daceopt.ir.instances_isl import Domains
from daceopt.ir.kernel import Kernel

Bounds = tuple[Dim, Dim]  # of a loop parameter: its first value, and the one behind the last


class StatementSpace:
    """The iterations of one statement of a kernel, and what the sizes of the graph can be."""

    def __init__(self, graph: Graph, kernel: Kernel, statement: int):
        domains = Domains(graph, kernel)
        self.extents = kernel.extents
        self.points, self.of, self._values = domains.functions(statement)
        self._sizes = domains.sizes
        natural = [n for n in map(sympy.sympify, kernel.extents.values()) if not n.is_number]
        self._natural = [*natural, *graph.assumptions]

    @cached_property
    def calls(self) -> isl.Set:
        """All points, for the sizes that there can be: extents are 0 or more."""
        found = self.points.get_space().universe_set()
        for expr in self._natural:
            with suppress(Unsupported):
                found = found.intersect(self.of.of(expr).nonneg_set())
        return found

    def natural(self, expr: Any) -> isl.Set | None:
        """Where ``expr`` is 0 or more; None where that is no set of isl's."""
        try:
            return self.of.of(expr).nonneg_set()
        except Unsupported:
            return None

    def possible(self, points: isl.Set, holds: isl.Set) -> isl.Set:
        """``points`` for sizes that there can be, of those that ``holds`` names."""
        return points.intersect_params(self._sizes.possible(holds.get_space()))

    def always(self, expr: Any) -> bool:
        """Is a function of sizes 0 or more in every call?"""
        holds = self.natural(expr)
        return holds is not None and bool(self.possible(self.calls, holds).is_subset(holds))


class IndexRegion:
    """The iterations with ``first <= p < end`` for each parameter p in ``bounds``, and all of the others."""

    def __init__(self, space: StatementSpace, bounds: Mapping[Any, Bounds], points: isl.Set):
        self.space, self.bounds, self._points = space, dict(bounds), points
        self._decided: dict[Any, bool | None] = {}

    @classmethod
    def whole(cls, space: StatementSpace) -> IndexRegion:
        return cls(space, {}, space.points.intersect(space.calls))

    def box(self) -> dict[Any, Bounds]:
        """Parameter -> its first value, and how many there are, which is never less than 0."""
        return {p: (first, dim(sympy.sympify(end) - first)) for p, (first, end) in self.bounds.items()}

    def natural(self, expr: Any) -> bool | None:
        """Is ``expr`` 0 or more in all of the region (True), nowhere (False), or is that not known?"""
        expr = sympy.sympify(expr)
        if expr.is_Integer:
            return bool(expr >= 0)
        if expr not in self._decided:
            self._decided[expr] = self._decide(expr)
        return self._decided[expr]

    def _decide(self, expr: Any) -> bool | None:
        holds = self.space.natural(expr)
        if holds is None:
            return None
        points = self.space.possible(self._points, holds)
        if points.is_subset(holds):
            return True
        return False if points.is_disjoint(holds) else None

    def crossing(self, expr: Any) -> tuple[Any, Dim] | None:
        """``(p, at)``: ``expr``, which is affine in p alone, changes its sign between ``at - 1`` and ``at``."""
        form = affine(expr, self.space.extents.keys())
        single = form.terms[0] if len(form.terms) == 1 and form.is_exact else None
        if single is None or not isinstance(single[1], int) or self.space.natural(expr) is None:
            return None
        (p, factor), rest = single, sympy.sympify(form.constant)
        return p, dim(-sympy.floor(rest / factor) if factor > 0 else sympy.floor(rest / -factor) + 1)

    def ends(self, expr: Any) -> tuple[int, int] | None:
        """The least and the largest value of what is affine in one parameter, or none, where these are numbers."""
        form = affine(expr, self.space.extents.keys())
        if len(form.terms) > 1 or not form.is_integral or not isinstance(form.constant, int):
            return None
        found = {form.constant}
        for p, factor in form.terms:
            first, end = self.bounds.get(p, (0, self.space.extents[p]))
            if not isinstance(first, int) or not isinstance(end, int):
                return None
            found = {form.constant + factor * first, form.constant + factor * (end - 1)}
        return min(found), max(found)

    def cut(self, p: Any, at: Dim) -> list[IndexRegion]:
        """The parts below ``at`` and from it on, without those that are empty for all sizes."""
        first, end = self.bounds.get(p, (0, self.space.extents[p]))
        if not self.space.always(sympy.sympify(at) - first):
            at = _unevaluated(sympy.Max, at, first)
        if not self.space.always(sympy.sympify(end) - at):
            at = _unevaluated(sympy.Min, at, end)
        parts = [self._part(p, (first, at), at - p - 1), self._part(p, (at, end), p - at)]
        return [r for r in parts if not r._points.is_empty()]

    def _part(self, p: Any, bounds: Bounds, inside: Any) -> IndexRegion:
        holds = self.space.of.of(inside).nonneg_set()
        points = self.space.possible(self._points.intersect(holds), holds)
        return IndexRegion(self.space, {**self.bounds, p: bounds}, points)


def _unevaluated(extreme: Any, value: Dim, other: Dim) -> Dim:
    """A minimum or maximum as it stands: SymPy would compare all parts of both with each other, which takes long."""
    numbers = isinstance(value, int) and isinstance(other, int)
    return value if value == other else dim(extreme(value, other, evaluate=numbers))

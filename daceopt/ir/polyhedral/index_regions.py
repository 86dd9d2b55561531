"""Parts of an iteration space between bounds that may depend on sizes, and what holds in all of such a part.

Bounds are kept in order for all sizes, by minima and maxima where nothing else is known: a part may have no iterations.
What holds is decided by isl (parametric integer sets: Feautrier 1988; Verdoolaege, isl, ICMS 2010).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import islpy as isl
import sympy
from sympy.core.function import FunctionClass

from daceopt.errors import Unsupported
from daceopt.ir.graph.graph import Graph
from daceopt.ir.kernel.kernel import Kernel
from daceopt.ir.polyhedral.instances_isl import Domains
from daceopt.ir.scalar.affine import Affine, affine
from daceopt.ir.scalar.affine_isl import with_facts
from daceopt.ir.scalar.dims import Dim, dim

Bounds = tuple[Dim, Dim]  # of a loop parameter: its first value, and the one behind the last


class StatementSpace:
    """The iterations of one statement of a kernel, and what the sizes of the graph can be."""

    def __init__(self, graph: Graph, kernel: Kernel, statement: int):
        domains = Domains(graph, kernel)
        self.extents = kernel.extents
        self.points, self.of, self._values = domains.functions(statement)
        self._sizes = domains.sizes
        self.calls = graph.sizes.knowing(kernel.extents.values())  # extents are 0 or more

    def natural(self, expr: sympy.Expr) -> isl.Set | None:
        """Where ``expr`` is 0 or more; None where that is no set of isl's."""
        try:
            return self.of.of(expr).nonneg_set()
        except Unsupported:
            return None

    def possible(self, points: isl.Set, holds: isl.Set) -> isl.Set:
        """``points`` for sizes that there can be, of those that ``holds`` names."""
        return points.intersect_params(self._sizes.possible(holds.get_space()))


class IndexRegion:
    """The iterations with ``first <= p < end`` for each parameter p in ``bounds``, and all of the others."""

    def __init__(self, space: StatementSpace, bounds: Mapping[sympy.Symbol, Bounds], points: isl.Set):
        self.space, self.bounds, self._points = space, dict(bounds), points
        self._decided: dict[sympy.Expr, bool | None] = {}

    @classmethod
    def whole(cls, space: StatementSpace) -> IndexRegion:
        return cls(space, {}, with_facts(space.points, space.of, space.calls.facts))

    def box(self) -> dict[sympy.Symbol, Bounds]:
        """Parameter -> its first value, and how many there are, which is never less than 0."""
        return {p: (first, dim(sympy.sympify(end) - first)) for p, (first, end) in self.bounds.items()}

    def natural(self, expr: sympy.Expr) -> bool | None:
        """Is ``expr`` 0 or more in all of the region (True), nowhere (False), or is that not known?"""
        expr = sympy.sympify(expr)
        if expr.is_Integer:
            return bool(expr >= 0)
        if expr not in self._decided:
            self._decided[expr] = self._decide(expr)
        return self._decided[expr]

    def _decide(self, expr: sympy.Expr) -> bool | None:
        holds = self.space.natural(expr)
        if holds is None:
            return None
        points = self.space.possible(self._points, holds)
        if points.is_subset(holds):
            return True
        return False if points.is_disjoint(holds) else None

    def crossing(self, expr: sympy.Expr) -> tuple[sympy.Expr, Dim] | None:
        """``(p, at)``: cutting p between ``at - 1`` and ``at`` decides more of the sign of ``expr``.

        Where the region leaves it one parameter, its sign changes there. Of several the one is cut in whose multiples
        the others are digits, as in ``16*p + q - 32`` with q < 16; a multiple in which the sign changes is cut out.
        """
        form = affine(expr, self.space.extents.keys())
        terms, constant = self._open_terms(form)
        if not terms or not form.is_exact or not all(isinstance(f, int) for _, f in terms):
            return None
        if len(terms) > 1:
            return self._crossing_of_digits(terms, constant)
        if self.space.natural(expr) is None:
            return None
        ((p, factor),) = terms
        return p, dim(-sympy.floor(constant / factor) if factor > 0 else sympy.floor(constant / -factor) + 1)

    def _open_terms(self, form: Affine) -> tuple[list[tuple[sympy.Symbol, Dim]], sympy.Expr]:
        """The terms of parameters that have several values here, and the constant with all others."""
        terms, constant = [], sympy.sympify(form.constant)
        for p, factor in form.terms:
            first, end = self._bounds_of(p)
            if isinstance(first, int) and end == first + 1:
                constant += factor * first
            else:
                terms.append((p, factor))
        return terms, constant

    def _crossing_of_digits(
        self, terms: list[tuple[sympy.Expr, int]], constant: sympy.Expr
    ) -> tuple[sympy.Expr, int] | None:
        (p, factor), *digits = sorted(terms, key=lambda term: -abs(term[1]))
        ends, (first, end) = self._ends_of_terms(digits), self._bounds_of(p)
        if ends is None or not constant.is_Integer or not (isinstance(first, int) and isinstance(end, int)):
            return None
        if ends[1] - ends[0] >= abs(factor):
            return None
        surely = int(constant) + ends[0]  # where the least of the digits makes it 0 or more, all of them do
        at = -(surely // factor) if factor > 0 else surely // -factor + 1
        inside = [n for n in (at, at - 1, at + 1) if first < n < end]
        return (p, inside[0]) if inside else None

    def _bounds_of(self, p: sympy.Symbol) -> Bounds:
        return self.bounds.get(p, (0, self.space.extents[p]))

    def ends(self, expr: sympy.Expr) -> tuple[int, int] | None:
        """The least and the largest value of what is affine in the parameters, where these are numbers."""
        form = affine(expr, self.space.extents.keys())
        if not form.is_integral or not isinstance(form.constant, int):
            return None
        ends = self._ends_of_terms(form.terms)
        return None if ends is None else (form.constant + ends[0], form.constant + ends[1])

    def _ends_of_terms(self, terms: Sequence[tuple[sympy.Expr, Dim]]) -> tuple[int, int] | None:
        """Of a sum of multiples of parameters; None unless all numbers are known."""
        least = most = 0
        for p, factor in terms:
            first, end = self._bounds_of(p)
            if not (isinstance(factor, int) and isinstance(first, int) and isinstance(end, int)):
                return None
            low, high = sorted((factor * first, factor * (end - 1)))
            least, most = least + low, most + high
        return least, most

    def cut(self, p: sympy.Symbol, at: Dim) -> list[IndexRegion]:
        """The parts below ``at`` and from it on, without those that are empty for all sizes."""
        first, end = self._bounds_of(p)
        if not self.space.calls.is_natural(sympy.sympify(at) - first):
            at = _without_evaluation(sympy.Max, at, first)
        if not self.space.calls.is_natural(sympy.sympify(end) - at):
            at = _without_evaluation(sympy.Min, at, end)
        parts = [self._part(p, (first, at), at - p - 1), self._part(p, (at, end), p - at)]
        return [r for r in parts if not r._points.is_empty()]

    def _part(self, p: sympy.Symbol, bounds: Bounds, inside: isl.Set) -> IndexRegion:
        holds = self.space.of.of(inside).nonneg_set()
        points = self.space.possible(self._points.intersect(holds), holds)
        return IndexRegion(self.space, {**self.bounds, p: bounds}, points)


def _without_evaluation(extreme: FunctionClass, value: Dim, other: Dim) -> Dim:
    """A minimum or maximum as it is: SymPy would compare all parts of both with each other, which takes long."""
    numbers = isinstance(value, int) and isinstance(other, int)
    return value if value == other else dim(extreme(value, other, evaluate=numbers))

"""What holds for all sizes of a graph: the one place that proves it.

Sizes are integers of 0 or more, in every call: a program is refused for others. So are their products, and the
parameters of loops. What else is known are *facts*, expressions that are 0 or more, and the extents of *loops*.

Each question is whether an expression is never negative. Cheap rules come first: the signs of its terms, then examples
in which it is negative, then substitutions; integer sets (``sizes_isl.py``) come last. No rule errs. What none of them
proves may hold all the same: a caller does then what is right in any case.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import sympy

from daceopt.ir.scalar import signs, size_examples
from daceopt.ir.scalar.affine import affine, same
from daceopt.ir.scalar.dims import Dim, dim
from daceopt.ir.scalar.size_examples import Example, value_of


@dataclass(frozen=True)
class Sizes:
    """What is known of sizes; equal ones share their proofs.

    ``facts``: expressions that are 0 or more. ``loops``: ``(parameter, extent)``, the outermost first: what is asked is
    whether something holds in all of their iterations, if there are any.
    """

    facts: tuple[sympy.Expr, ...] = ()
    loops: tuple[tuple[sympy.Symbol, sympy.Expr], ...] = ()

    @classmethod
    def where(cls, facts: Sequence[sympy.Expr]) -> Sizes:
        """The sizes for which ``facts`` are 0 or more."""
        return cls(tuple(facts)) if facts else ALL_SIZES

    def knowing(self, facts: Iterable[sympy.Expr]) -> Sizes:
        """The same, where the integer expressions ``facts`` are 0 or more as well."""
        more = tuple(f for f in dict.fromkeys(map(sympy.sympify, facts)) if not f.is_number and f not in self.facts)
        return Sizes((*self.facts, *more), self.loops) if more else self

    def inside(self, loops: Mapping[sympy.Symbol, Dim]) -> Sizes:
        """The same, in loops that run from 0 to below their extents."""
        more = tuple((p, sympy.sympify(n)) for p, n in loops.items())
        return Sizes(self.facts, (*self.loops, *more)) if more else self

    def is_natural(self, expr: Dim) -> bool:
        """Is ``expr`` 0 or more?"""
        if isinstance(expr, int):
            return expr >= 0
        return _is_natural(self, sympy.sympify(expr))

    def is_positive(self, expr: Dim) -> bool:
        """Is ``expr`` more than 0?"""
        if isinstance(expr, int):
            return expr > 0
        expr = sympy.sympify(expr)
        if not expr.free_symbols:
            value = value_of(expr, {}, None)
            return bool(expr.is_extended_positive) if value is None else value > 0
        return _is_positive(expr) or bool(expr.is_integer and self.is_natural(expr - 1))

    def are_equal(self, a: Dim, b: Dim) -> bool:
        """Are two integers the same?"""
        return same(a, b) or (self.is_natural(a - b) and self.is_natural(b - a))

    def signs(self, expr: Dim) -> frozenset[int]:
        """The signs, of -1, 0 and 1, that ``expr`` may have."""
        least = 1 if self.is_positive(expr) else 0 if self.is_natural(expr) else -1
        most = 1 if least == 1 else -1 if self.is_positive(-expr) else 0 if self.is_natural(-expr) else 1
        return frozenset(range(least, most + 1))


ALL_SIZES = Sizes()
"""Nothing is known but that sizes are integers of 0 or more."""


@lru_cache(1 << 12)
def _is_positive(expr: sympy.Expr) -> bool:
    return signs.is_positive(sympy.expand(expr))


@lru_cache(1 << 15)
def _is_natural(sizes: Sizes, expr: sympy.Expr) -> bool:
    if not expr.free_symbols:
        value = value_of(expr, {}, None)
        return bool(expr.is_extended_nonnegative) if value is None else value >= 0
    expr = sympy.expand(expr)
    if signs.is_natural(expr):
        return True
    prover = _known_facts(_about(sizes, expr), not expr.has(*_EXTREMES))
    counted = sympy.expand(prover.count(expr)) if prover.least else expr
    if signs.is_natural(counted):
        return True
    if prover.loops and (holds := prover.at_ends(counted)) is not None:
        return holds
    return not prover.refutes(counted) and (prover.proves_in_quotients(expr) or prover.proves(counted))


def _about(sizes: Sizes, expr: sympy.Expr) -> Sizes:
    """``sizes`` without the loops of known extents that ``expr`` does not name."""
    if not sizes.loops:
        return sizes
    named = expr.free_symbols.union(*(e.free_symbols for e in (*sizes.facts, *(n for _, n in sizes.loops))))
    loops = tuple((p, n) for p, n in sizes.loops if p in named or not n.is_Integer or n < 1)
    return sizes if len(loops) == len(sizes.loops) else Sizes(sizes.facts, loops)


_EXTREMES = (sympy.Min, sympy.Max)  # substitution makes SymPy compare all that is in one: seconds


@lru_cache(1 << 10)
def _known_facts(sizes: Sizes, shifted: bool) -> _Known:
    return _Known(sizes, shifted)


class _Known:
    """What is known of sizes, each counted from what it is at least, where that is ``shifted``.

    ``facts`` are those that this does not say.
    """

    def __init__(self, sizes: Sizes, shifted: bool):
        shifted = shifted and not any(e.has(*_EXTREMES) for e in (*sizes.facts, *(n for _, n in sizes.loops)))
        self.least = _least(sizes.facts, {p for p, _ in sizes.loops}) if shifted else {}
        facts = [sympy.expand(self.count(f)) for f in sizes.facts]
        self.loops = tuple((p, self.count(n)) for p, n in sizes.loops)
        self.facts = tuple(f for f in facts if not signs.is_natural(f))
        self._examples: dict[int, Example | None] = {}
        self._positive = tuple(sympy.expand(f + 1) for f in sizes.facts)

    def count(self, expr: sympy.Expr) -> sympy.Expr:
        """``expr`` in these sizes."""
        return expr.xreplace({s: s + n for s, n in self.least.items()}) if self.least else expr

    def refutes(self, expr: sympy.Expr) -> bool:
        """Is there an example in which ``expr`` is negative? Most of what is asked and not so is settled here."""
        numbers = range(0, size_examples.COUNT, size_examples.STEP[bool(self.loops)])
        return any(example is not None and value_of(expr, example, 0) < 0 for example in map(self._example, numbers))

    def _example(self, number: int) -> Example | None:
        if number not in self._examples:
            self._examples[number] = size_examples.example(number, self.facts, self.loops)
        return self._examples[number]

    def proves(self, expr: sympy.Expr) -> bool:
        """Is ``expr`` 0 or more by a fact, or by isl?"""
        from daceopt.ir.scalar import sizes_isl  # loads islpy, once there is something to ask

        if any(signs.is_natural(sympy.expand(expr - fact)) for fact in self.facts):
            return True
        return sizes_isl.is_natural(expr, self.facts, self.loops)

    def proves_in_quotients(self, expr: sympy.Expr) -> bool:
        """Is ``expr``, not yet through :meth:`count`, 0 or more because each term is, with quotients as sizes?"""
        parts = _in_quotients(expr, self._positive)
        return parts is not expr and signs.is_natural(sympy.expand(self.count(parts)))

    def at_ends(self, expr: sympy.Expr) -> bool | None:
        """Is ``expr`` 0 or more where it is least: at an end of each loop? None where that is not known, as of what is
        not affine in the loops."""
        extents = dict(self.loops)
        form = affine(expr, extents)
        if not form.is_exact:
            return None
        outside = Sizes(tuple(f for f in self.facts if not f.free_symbols & extents.keys()))
        low: Dim = form.constant
        for p, factor in form.terms:
            if not outside.is_natural(factor):
                if not outside.is_natural(-factor):
                    return None
                low = low + factor * (extents[p] - 1)
        if getattr(low, "free_symbols", set()) & extents.keys():  # of a loop further out
            return self.at_ends(low)
        counts = [n - 1 for n in extents.values() if not n.free_symbols & extents.keys()]  # or there are no iterations
        if outside.knowing(counts).is_natural(low):
            return True
        return False if isinstance(dim(low), int) and all(n.is_Integer and n > 0 for n in extents.values()) else None


def _least(facts: Iterable[sympy.Expr], params: Collection[sympy.Symbol]) -> dict[sympy.Symbol, int]:
    """Size -> what it is at least, where facts like ``s - 3`` or ``s*t - 1`` say so."""
    bounds: dict[sympy.Symbol, int] = {}
    for fact in facts:
        constant, rest = fact.as_coeff_Add()
        number, product = rest.as_coeff_Mul()
        factors = sympy.Mul.make_args(product)
        if constant < 0 < number and all(s.is_Symbol and signs.is_natural(s) for s in factors):
            least = int(sympy.ceiling(-constant / number)) if len(factors) == 1 else 1
            bounds |= {s: max(bounds.get(s, 0), least) for s in factors if s not in params}
    return bounds


def _in_quotients(expr: sympy.Expr, positive: Collection[sympy.Expr]) -> sympy.Expr:
    """``expr`` where each size ``n`` of which it has ``floor(n / k)`` is ``k*q + r``: polynomial where it was but for
    the floors. Of a floor that is among ``positive``, ``q`` is ``q + 1``.

    That the rest ``r`` is less than ``k`` is not said. What has other floors stays.
    """
    floors = {f for e in (expr, *positive) for f in e.atoms(sympy.floor)}
    quotients: dict[sympy.Symbol, tuple[sympy.Expr, sympy.Expr]] = {}  # size -> what it is divided by, rounded down
    for floor in floors:
        size = next(iter(floor.free_symbols), None)
        divisor = sympy.S.Zero if size is None else size / floor.args[0]
        if len(floor.free_symbols) != 1 or not divisor.is_Integer or divisor < 0 or size in quotients:
            return expr
        quotients[size] = divisor, floor
    for size, (k, floor) in quotients.items():
        q, r = (sympy.Dummy(f"{size}_{what}", integer=True, nonnegative=True) for what in ("quotient", "rest"))
        count = q + 1 if floor in positive else q
        expr = expr.xreplace({floor: count}).xreplace({size: k * count + r})
    return sympy.expand(expr) if quotients else expr

"""The pieces of an iteration space in which scalar code that chooses by position is plain: each condition on an index
holds everywhere or nowhere, and each place that is loaded is affine, so that it is an access as any other.

Index-set splitting: Banerjee, Loop Transformations for Restructuring Compilers; Wolfe, High Performance Compilers for
Parallel Computing, 9.4. A piece is cut where the first difference that is not decided in it changes its sign: of the
operands of a condition, of what a minimum or a distance chooses from, of a place and a multiple of what it wraps at.
Such a difference is affine in the one loop that it names, and may have sizes: cuts are then expressions.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import dace
import sympy

from daceopt.ir.graph.graph import Graph
from daceopt.ir.kernel.kernel import Access, Kernel, Stage
from daceopt.ir.kernel.tasklet import Assignment, eliminate_dead, fresh
from daceopt.ir.polyhedral.index_regions import IndexRegion, StatementSpace
from daceopt.ir.scalar import scalar, types
from daceopt.ir.scalar.affine import affine
from daceopt.ir.scalar.dims import Dim, hint
from daceopt.ir.scalar.functions import ScalarFunction
from daceopt.ir.scalar.types import DType
from daceopt.transformations.hardware._index_places import Cut, PlaceSimplifier, logical

Box = Mapping[sympy.Symbol, tuple[Dim, Dim]]  # parameter -> its first value, and how many: never less than 0


@dataclass(frozen=True)
class PlainPiece:
    """A stage, in the parameters of the whole, for the iterations of ``box``: all, of parameters that are not there."""

    box: Box
    stage: Stage

    def loads(self) -> int:
        """Places of arrays that are read by their index, and not as an access."""
        return len({load for a in self.stage.assignments for load in a.expr.atoms(scalar.load)})

    def cost(self, extents: Mapping[sympy.Symbol, Dim]) -> float:
        """Elements that it reads; one that is looked up counts as several."""
        count = prod(hint(self.box.get(p, (0, extents[p]))[1]) for p in self.stage.params)
        return float(count * (1 + len(self.stage.reads) + 3 * self.loads()))


def chooses(kernel: Kernel, stage: Stage) -> bool:
    """Does the scalar code look at where it is? Cheap."""
    return any(not a.free_symbols.isdisjoint(kernel.extents) for a in stage.assignments)


def pieces(
    graph: Graph, kernel: Kernel, statement: int, most: int, reduced: Collection[sympy.Symbol] = ()
) -> list[PlainPiece] | None:
    """The pieces of a statement, in order; None where there would be more than ``most``. ``reduced``: parameters that
    are not cut."""
    stage = kernel.stages[statement]
    cuttable = {p for p in stage.params if p not in reduced and p not in kernel.outer}
    waiting = [IndexRegion.whole(StatementSpace(graph, kernel, statement))]
    plain_pieces: list[PlainPiece] = []
    while waiting:
        region = waiting.pop(0)
        simple = _StageSimplifier(graph, kernel, stage, PlaceSimplifier(region, cuttable, most))
        assignments = simple.run()
        cut = simple.cut(assignments)
        if cut is None:
            plain_pieces.append(PlainPiece(region.box(), simple.stage(assignments)))
        else:
            waiting = [*region.cut(*cut), *waiting]
        if len(plain_pieces) + len(waiting) > most:
            return None
    return plain_pieces


class _StageSimplifier:
    """The scalar code of a stage in a region: what is the same in all of it is decided."""

    def __init__(self, graph: Graph, kernel: Kernel, stage: Stage, places: PlaceSimplifier):
        self._graph, self._kernel, self._stage, self._places = graph, kernel, stage, places
        self._reads = dict(stage.reads)
        self._types = {scalar.symbol(c, self._dtype(a)): self._dtype(a) for c, a in stage.reads.items()}
        self._dtypes = scalar.Types(self._types)
        self._made: list[Assignment] = []
        self._indices: dict[sympy.Symbol, sympy.Expr] = {}  # integers that follow from parameters alone
        self._cuts: dict[Any, tuple[list[Cut], list[Cut]]] = {}  # assignment -> what its conditions and places want

    def _dtype(self, access: Access) -> DType:
        local = self._kernel.locals.get(access.array)
        return types.compute_type(self._graph.dtype(access.array) if local is None else local[0])

    def run(self) -> list[Assignment]:
        """The assignments, in order."""
        for a in self._stage.assignments:
            self._by_condition, self._by_place = self._cuts[a.symbol] = ([], [])
            expr = self._simple(a.expr)
            index = self._index(expr, [])
            if index is not None and _keeps(a.dtype, index):
                self._indices[a.symbol] = index
            self._types[a.symbol] = a.dtype
            self._made.append(a if expr is a.expr else Assignment(a.symbol, expr, a.dtype))
        return list(eliminate_dead(self._made, self._stage.writes))

    def cut(self, assignments: Sequence[Assignment]) -> Cut | None:
        """Where ``assignments``, those that count, are cut next: first by conditions, behind which fewer places are
        loaded."""
        cuts_of = [self._cuts[a.symbol] for a in assignments if a.symbol in self._cuts]
        return next((cut for kind in range(2) for cuts in cuts_of for cut in cuts[kind]), None)

    def stage(self, assignments: Sequence[Assignment]) -> Stage:
        """The stage with ``assignments``, and what they still read."""
        used = {str(s) for a in assignments for s in a.expr.free_symbols}
        reads = {c: a for c, a in self._reads.items() if c in used}
        return replace(self._stage, reads=reads, assignments=tuple(assignments))

    def _index(self, expr: sympy.Expr, cuts: list[Cut]) -> sympy.Expr | None:
        """``expr`` as far as it is decided; None unless it follows from parameters and sizes alone."""
        inlined = expr.xreplace(self._indices)
        if not inlined.free_symbols.isdisjoint(self._types) or inlined.has(scalar.load, scalar.uniform):
            return None
        return self._places.simple(inlined, cuts)

    # ---------------------------------------------------------------- expressions

    def _simple(self, expr: sympy.Expr) -> sympy.Expr:
        if not expr.args:
            return expr
        rule = expr.row.rule if isinstance(expr, ScalarFunction) else ""
        if rule == "compare":
            decided = self._index(expr, self._by_condition)
            if decided is not None and decided.is_Integer:
                return decided
        if rule == "select":
            return self._select(expr)
        if rule == "logical":
            return self._connect(expr)
        args = [self._simple(a) for a in expr.args]
        if rule == "load":
            return self._load(expr, args)
        if all(a is b for a, b in zip(args, expr.args)):
            return expr
        return (
            expr.func(*args, evaluate=False)
            if isinstance(expr, (sympy.Add, sympy.Mul, sympy.Pow))
            else expr.func(*args)
        )

    def _connect(self, expr: sympy.Expr) -> sympy.Expr:
        """Where some operands decide, the others need no cut."""
        before = len(self._by_condition)
        new = logical(expr, [self._simple(a) for a in expr.args])
        if new.is_Integer:
            del self._by_condition[before:]
        return new

    def _select(self, expr: sympy.Expr) -> sympy.Expr:
        condition = self._simple(expr.args[0])
        if self._by_condition:  # the region is cut there; what is chosen from is looked at in its parts
            return expr
        if not condition.is_Integer:
            return expr.func(condition, *(self._simple(a) for a in expr.args[1:]))
        chosen = self._simple(expr.args[1] if condition else expr.args[2])
        dtype = self._dtypes.strong(expr)
        # a number would be computed with, by other rules than those of machines
        if not chosen.is_number and self._dtypes.strong(chosen) == dtype:
            return chosen
        symbol = scalar.symbol(fresh("chosen", [str(s) for s in self._types]), dtype)
        self._types[symbol] = dtype
        self._made.append(Assignment(symbol, chosen, dtype))
        return symbol

    def _load(self, expr: sympy.Expr, args: Sequence[sympy.Expr]) -> sympy.Expr:
        """The load as an access, where each index is affine and within the array."""
        connector = str(args[0])
        array = self._reads[connector].array
        shape = self._kernel.locals[array][1] if array in self._kernel.locals else self._graph.shape(array)
        index = [self._affine(e, n) for e, n in zip(expr.args[1:], shape)]
        if None in index or len(index) != len(shape):
            return expr.func(*args)
        access = Access(array, tuple(index))
        same = next((c for c, a in self._reads.items() if a == access), None)
        name = same or fresh(f"{connector}_at", [*self._reads, *(str(s) for s in self._types)])
        self._reads[name] = access
        symbol = scalar.symbol(name, self._dtype(access))
        self._types[symbol] = self._dtype(access)
        return symbol

    def _affine(self, expr: sympy.Expr, extent: Dim) -> sympy.Expr | None:
        """``expr`` as an affine index that is surely below ``extent`` and not negative; None for any other."""
        place = self._index(expr, self._by_place)
        if place is None or place.has(ScalarFunction) or not affine(place, self._kernel.extents.keys()).is_integral:
            return None
        return place if self._places.within(place, extent) else None


def _keeps(dtype: types.DType, index: sympy.Expr) -> bool:
    """Is a variable of this type the very number that is assigned to it? Narrow ones wrap around."""
    if types.is_bool(dtype):
        return index in (0, 1) or (isinstance(index, ScalarFunction) and index.row.rule in ("compare", "logical"))
    return dtype in (dace.int32, dace.int64)

"""The pieces of an iteration space in which scalar code that chooses by position is plain: each condition on an index
holds everywhere or nowhere, and each place that is loaded is affine, so that it is an access as any other.

Index-set splitting: Banerjee, Loop Transformations for Restructuring Compilers; Wolfe, High Performance Compilers for
Parallel Computing, 9.4. Where to cut is found by computing conditions and places for all values of the one parameter
that they name, so whatever has few pieces (clamps, wrapping, reflection, distances) has them found.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
import sympy

from daceopt.ir import scalar, types
from daceopt.ir.functions import ScalarFunction
from daceopt.ir.graph import Graph
from daceopt.ir.kernel import Access, Kernel, Stage
from daceopt.ir.tasklet import Assignment, eliminate_dead, fresh

_LONGEST = 1 << 20  # values of a parameter that are looked at
_CONDITIONS = ("compare", "logical")

Box = Mapping[Any, tuple[int, int]]  # parameter -> its first value, and how many


@dataclass(frozen=True)
class PlainPiece:
    """A stage, in the parameters of the whole, for the iterations of ``box``: all, of parameters that are not there."""

    box: Box
    stage: Stage

    def loads(self) -> int:
        """Places of arrays that are read by their index, and not as an access."""
        return sum(None in a.index for a in self.stage.reads.values())

    def cost(self, extents: Mapping[Any, Any]) -> float:
        """Elements that it reads; one that is looked up counts as several."""
        count = prod(
            self.box.get(p, (0, extents[p] if isinstance(extents[p], int) else 1))[1] for p in self.stage.params
        )
        return float(count * (1 + len(self.stage.reads) + 3 * self.loads()))


def chooses(kernel: Kernel, stage: Stage) -> bool:
    """Does the scalar code look at where it is? Cheap."""
    return any(not a.expr.free_symbols.isdisjoint(kernel.extents) for a in stage.assignments)


def pieces(graph: Graph, kernel: Kernel, stage: Stage, most: int) -> list[PlainPiece] | None:
    """The pieces of ``stage``, in order; None where there would be more than ``most``."""
    return _Splitter(graph, kernel, stage, most).run()


class _Splitter:
    def __init__(self, graph: Graph, kernel: Kernel, stage: Stage, most: int):
        self._graph, self._kernel, self._stage, self._most = graph, kernel, stage, most
        reduced = {p for c in stage.writes for p in stage.reduced(c)}
        self._cuttable = {
            p: int(kernel.extents[p])
            for p in stage.params
            if isinstance(kernel.extents[p], int)
            and 0 < kernel.extents[p] <= _LONGEST
            and p not in reduced
            and p not in kernel.outer
        }
        self._known = {p: int(n) for p, n in kernel.extents.items() if isinstance(n, int) and 0 < n <= _LONGEST}
        self._found: list[PlainPiece] = []

    def run(self) -> list[PlainPiece] | None:
        waiting: list[dict[Any, tuple[int, int]]] = [{}]
        while waiting:
            box = waiting.pop(0)
            simple = _Simplifier(self._graph, self._kernel, self._stage, self._known, box)
            assignments = simple.run()
            cut = self._cut(assignments, simple, box)
            if cut is None:
                self._found.append(PlainPiece(box, simple.stage(assignments)))
            else:
                waiting = [*cut, *waiting]
            if len(self._found) + len(waiting) > self._most:
                return None
        return self._found

    def _cut(self, assignments: Sequence[Assignment], simple: _Simplifier, box: Box) -> list[Any] | None:
        """Smaller boxes, first by conditions: behind them fewer places are loaded."""
        inlined = [a.expr.xreplace(simple.indices) for a in assignments]
        for wanted in (_conditions, _places):
            for expr in (e for whole in inlined for e in wanted(whole)):
                p = next(iter(expr.free_symbols), None)
                if len(expr.free_symbols) != 1 or p not in self._cuttable:
                    continue
                starts = _starts(simple.values(expr, p), wanted is _conditions)
                if 1 < len(starts) <= self._most:
                    first, size = box.get(p, (0, self._cuttable[p]))
                    ends = [*starts[1:], size]
                    return [{**box, p: (first + s, e - s)} for s, e in zip(starts, ends)]
        return None


def _conditions(expr: Any) -> Iterator[Any]:
    return (e for e in sympy.preorder_traversal(expr) if _rule(e) in _CONDITIONS)


def _places(expr: Any) -> Iterator[Any]:
    return (e for load in expr.atoms(scalar.load) for e in load.args[1:])


def _rule(expr: Any) -> str:
    return expr.row.rule if isinstance(expr, ScalarFunction) else ""


def _starts(values: np.ndarray, constant: bool) -> list[int]:
    """Where the pieces begin in which ``values`` are constant, or affine."""
    if constant:
        return [0, *(int(k) + 1 for k in np.flatnonzero(values[1:] != values[:-1]))]
    steps, starts, k = np.diff(values), [0], 0
    changes = np.flatnonzero(steps[1:] != steps[:-1]) + 1  # indices of steps that differ from the one before
    while True:
        later = changes[np.searchsorted(changes, k, side="right") :]
        if not later.size:
            return starts
        k = int(later[0]) + 1
        starts.append(k)
        if len(starts) > len(values) // 2:
            return starts


class _Simplifier:
    """The scalar code of a stage in a box: what is the same in all of it is decided."""

    def __init__(self, graph: Graph, kernel: Kernel, stage: Stage, known: Mapping[Any, int], box: Box):
        self._graph, self._kernel, self._stage, self._known, self._box = graph, kernel, stage, known, box
        self._params = set(kernel.extents)
        self._reads = dict(stage.reads)
        self._types = {scalar.symbol(c, self._dtype(a)): self._dtype(a) for c, a in stage.reads.items()}
        self._made: list[Assignment] = []
        self._numbers: dict[Any, np.ndarray] = {}
        self.indices: dict[Any, Any] = {}  # symbols of integers that follow from parameters alone -> what they are

    def _dtype(self, access: Access) -> Any:
        local = self._kernel.locals.get(access.array)
        return types.computed(self._graph.dtype(access.array) if local is None else local[0])

    def run(self) -> list[Assignment]:
        """The assignments, in order."""
        for a in self._stage.assignments:
            expr = self._simple(a.expr)
            inlined = expr.xreplace(self.indices)
            if not types.is_float(a.dtype) and inlined.free_symbols <= self._params and not inlined.has(scalar.load):
                self.indices[a.symbol] = self._decided(inlined)
            self._types[a.symbol] = a.dtype
            self._made.append(a if expr is a.expr else Assignment(a.symbol, expr, a.dtype))
        return list(eliminate_dead(self._made, self._stage.writes))

    def stage(self, assignments: Sequence[Assignment]) -> Stage:
        """The stage with ``assignments``, and what they still read."""
        used = {str(s) for a in assignments for s in a.expr.free_symbols}
        reads = {c: a for c, a in self._reads.items() if c in used}
        return replace(self._stage, reads=reads, assignments=tuple(assignments))

    def values(self, expr: Any, p: Any) -> np.ndarray:
        """What ``expr`` is for each value of ``p`` in the box."""
        if expr not in self._numbers:
            first, size = self._box.get(p, (0, self._known[p]))
            found = scalar.evaluate(expr, {p: np.arange(first, first + size, dtype=np.int64)})
            self._numbers[expr] = np.broadcast_to(found, (size,))
        return self._numbers[expr]

    # ---------------------------------------------------------------- expressions

    def _simple(self, expr: Any) -> Any:
        if not expr.args:
            return expr
        rule = _rule(expr)
        if rule in _CONDITIONS:
            decided = self._decided(expr.xreplace(self.indices))
            if decided.is_Integer:
                return decided
        if rule == "select":
            return self._selected(expr)
        args = [self._simple(a) for a in expr.args]
        if rule == "logical":
            return _logical(expr, args)
        if rule == "load":
            return self._loaded(expr, args)
        if all(a is b for a, b in zip(args, expr.args)):
            return expr
        return (
            expr.func(*args, evaluate=False)
            if isinstance(expr, (sympy.Add, sympy.Mul, sympy.Pow))
            else expr.func(*args)
        )

    def _decided(self, expr: Any) -> Any:
        """A condition or an index that is one number in all of the box."""
        p = next(iter(expr.free_symbols), None)
        if not expr.free_symbols:
            return sympy.Integer(int(scalar.evaluate(expr, {})))
        if len(expr.free_symbols) != 1 or p not in self._known:
            return expr
        found = self.values(expr, p)
        return sympy.Integer(int(found[0])) if (found == found[0]).all() else expr

    def _selected(self, expr: Any) -> Any:
        condition = self._simple(expr.args[0])
        if not condition.is_Integer:
            return expr.func(condition, *(self._simple(a) for a in expr.args[1:]))
        chosen = self._simple(expr.args[1] if condition else expr.args[2])
        dtype = scalar.dtype_of(expr, self._types)
        # a number would be computed with, by other rules than those of machines
        if not chosen.is_number and scalar.dtype_of(chosen, self._types) == dtype:
            return chosen
        symbol = scalar.symbol(fresh("chosen", [str(s) for s in self._types]), dtype)
        self._types[symbol] = dtype
        self._made.append(Assignment(symbol, chosen, dtype))
        return symbol

    def _loaded(self, expr: Any, args: Sequence[Any]) -> Any:
        """The load as an access, where each index is affine and within the array."""
        connector = str(args[0])
        array = self._reads[connector].array
        shape = self._kernel.locals[array][1] if array in self._kernel.locals else self._graph.shape(array)
        index = [self._affine(e.xreplace(self.indices), n) for e, n in zip(args[1:], shape)]
        if None in index or len(index) != len(shape):
            return expr.func(*args)
        access = Access(array, tuple(index))
        same = next((c for c, a in self._reads.items() if a == access), None)
        name = same or fresh(f"{connector}_at", [*self._reads, *(str(s) for s in self._types)])
        self._reads[name] = access
        symbol = scalar.symbol(name, self._dtype(access))
        self._types[symbol] = self._dtype(access)
        return symbol

    def _affine(self, expr: Any, extent: Any) -> Any:
        """``expr`` as an affine index that is surely below ``extent`` and not negative; None for any other."""
        if expr in self._kernel.extents and self._kernel.extents[expr] == extent:
            return expr
        if not isinstance(extent, int) or not expr.free_symbols <= self._known.keys():
            return None
        if len(expr.free_symbols) == 1:
            (p,) = expr.free_symbols
            values = self.values(expr, p)
            if values.min() < 0 or values.max() >= extent:
                return None
            step = int(values[1] - values[0]) if len(values) > 1 else 0
            first = self._box.get(p, (0, 0))[0]
            straight = (values == values[0] + step * np.arange(len(values))).all()
            return sympy.Integer(int(values[0]) - step * first) + step * p if straight else None
        return self._bounded(expr, extent)

    def _bounded(self, expr: Any, extent: int) -> Any:
        """An index of none or several parameters."""
        if expr.has(ScalarFunction) or any(expr.coeff(p).free_symbols for p in expr.free_symbols):
            return None
        steps = {p: expr.coeff(p) for p in expr.free_symbols}
        rest = sympy.expand(expr - sympy.Add(*(c * p for p, c in steps.items())))
        if not rest.is_Integer or not all(c.is_Integer for c in steps.values()):
            return None
        ends = [(c * f, c * (f + n - 1)) for p, c in steps.items() for f, n in [self._box.get(p, (0, self._known[p]))]]
        least, largest = rest + sum(map(min, ends)), rest + sum(map(max, ends))
        return expr if least >= 0 and largest < extent else None


def _logical(expr: Any, args: Sequence[Any]) -> Any:
    """Decided operands decide the others, or go."""
    if all(a.is_Integer for a in args):
        return sympy.Integer(int(expr.row.numpy(*(np.bool_(int(a)) for a in args))))
    for kind, deciding in ((scalar.logical_and, 0), (scalar.logical_or, 1)):
        if isinstance(expr, kind):
            known = [a for a in args if a.is_Integer]
            if any(int(a) == deciding for a in known):
                return sympy.Integer(deciding)
            rest = [a for a in args if not a.is_Integer]
            return rest[0] if len(rest) == 1 else expr.func(*args)
    return expr.func(*args)

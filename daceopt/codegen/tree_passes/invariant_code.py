"""What all iterations of a vector loop have in common, before it.

before:  for i1: v0 = p0[i0]; v1 = p1[i0, i1]; v2 = v1 - log(v0)
after:   v0 = p0[i0]; v3 = log(v0); | for i1: v1 = p1[i0, i1]; v2 = v1 - v3

- *Elements* that nothing in the loop writes: gcc takes them for changed by the loop's stores, whose pointers are not
  restricted any more inside of a parallel region, and does not vectorise a loop that loads one anew for the next
  iteration. Where the loop may be empty, they are loaded only if it is not.

Further code moves only where the loop surely runs:
- *calls*, which gcc would make again in each iteration;
- *positions* that are looked up: of a checked index inside, gcc makes a gather;
- *conditions* of choices, as masks (``dop::Mask``), by which vectors are chosen without widening a truth value.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace

import dace
import sympy

from daceopt.codegen.c_tree import Declare, ElementLoad, Position, ScalarValue, Statement, Ternary
from daceopt.codegen.lookups import Lookups
from daceopt.codegen.names import Names
from daceopt.ir.scalar import scalar, types
from daceopt.ir.scalar.dims import Dim
from daceopt.ir.schedule.schedule import Loop


class InvariantCode:
    """The pass over the statements of one iteration of ``loop``, which write the arrays ``written``.

    ``values``: the types of symbols; ``shared``: those that were made for this code, by names that other code may have.
    ``checks``: is an index checked before the loop?
    """

    def __init__(
        self,
        names: Names,
        loop: Loop,
        values: Mapping[sympy.Symbol, types.DType],
        shared: Mapping[str, sympy.Symbol],
        lookups: Lookups,
        written: Collection[str],
    ):
        self._names, self._loop, self._values, self._shared = names, loop, values, shared
        self._lookups, self._written = lookups, written
        self._infer, self._counter = scalar.Types(values), names.loop(loop.param)
        self._surely_runs = isinstance(loop.extent, int) and loop.extent > 0 and loop.rest is None
        self._fixed: set[str] = set()  # values that are the same in all iterations
        self._first: set[str] = set()  # those that are before the loop, but for what these are computed from
        self._known: dict[sympy.Expr, str] = {}  # call or condition -> its variable
        self._places: dict[tuple[sympy.Expr, Dim, Dim], str] = {}  # index, extent, stride -> its variable

    @property
    def checks(self) -> bool:
        return bool(self._places)

    def run(self, statements: Sequence[Statement]) -> tuple[list[Statement], frozenset[str]]:
        """The statements in their order, and the values of those that come before the loop."""
        moved = [part for s in statements for part in self._parts(s)]
        first = set(self._first)
        for s in reversed(moved):
            if isinstance(s, Declare) and s.name in first:
                first |= s.uses & self._fixed
        return moved, frozenset(first)

    def _parts(self, s: Statement) -> Iterator[Statement]:
        """A statement, behind those that compute what it has in common with other iterations."""
        if isinstance(s, Declare) and isinstance(s.value, ElementLoad):
            yield self._loading(s, s.value)
        elif not isinstance(s, Declare) or not isinstance(s.value, ScalarValue):
            yield s
        elif not self._surely_runs:
            yield replace(s, uses=s.value.uses)
        else:
            yield from self._before(s.value)
            places: dict[tuple[sympy.Expr, int], str] = {}
            yield from self._positions(s.value.expr, places)
            value = self._with_known(s.value.expr, s.value.dtype, places)
            yield replace(s, name=self._name(s, s.value), value=value, uses=value.uses)

    def _loading(self, s: Declare, load: ElementLoad) -> Declare:
        """Of an element that is the same in all iterations, and that nothing writes."""
        reference = load.reference
        if reference is None or reference.buffer.array in self._written or self._loop.param in reference.params():
            return s
        self._first.add(s.name)
        if self._surely_runs:
            self._fixed.add(s.name)
            return s
        sizes = [self._loop.extent, *([] if self._loop.rest is None else [self._loop.rest])]
        runs = " && ".join(f"{self._names.size_text(n)} > 0" for n in sizes)
        return replace(s, value=Ternary(runs, load, f"{s.type}(0)"))

    def _name(self, s: Declare, value: ScalarValue) -> str:
        """The variable of a value; a new one where it may come to be beside what others have called alike."""
        if not self._is_fixed(value.expr):
            return s.name
        self._fixed.add(s.name)
        if s.name not in self._shared:
            return s.name
        name = self._known[self._shared[s.name]] = str(self._names.value(value.dtype))
        self._fixed.add(name)
        self._first.add(name)
        return name

    def _before(self, value: ScalarValue) -> Iterator[Declare]:
        """Its calls and conditions that are the same in all iterations, each once.

        They stay in the expression, whose terms are added in an order that SymPy finds by what they are.
        """
        for call in _outermost(value.expr, self._is_fixed_call):
            if call not in self._known:
                dtype = self._infer.strong(call, value.dtype)
                yield self._declare(types.cpp(dtype), call, dtype)
        for condition in self._fixed_conditions(value.expr):
            yield self._declare("dop::Mask", condition, dace.bool_)

    def _declare(self, kind: str, expr: sympy.Expr, dtype: types.DType) -> Declare:
        """Of ``expr``, which has this variable wherever it occurs from here on."""
        name, value = str(self._names.value(dtype)), self._with_known(expr, dtype, {})
        self._known[expr] = name
        self._fixed.add(name)
        self._first.add(name)
        return Declare(kind, name, value, const=True, uses=value.uses)

    def _positions(self, expr: sympy.Expr, places: dict[tuple[sympy.Expr, int], str]) -> Iterator[Declare]:
        """What computes the positions of loads that are done whatever the values are; ``places`` gets their names."""
        for load in _evaluated_loads(expr):
            for k, (index, extent, stride) in enumerate(self._lookups.axes(load)):
                if self._lookups.is_inside(index, extent) or not self._is_fixed(index):
                    continue
                key = index, extent, stride
                if key not in self._places:
                    self._places[key] = str(self._names.value(dace.int64))
                    self._first.add(self._places[key])
                    value, uses = self._with_known(index, dace.int64, {}), frozenset(s.name for s in index.free_symbols)
                    yield Declare("int64_t", self._places[key], Position(value, extent, stride), const=True, uses=uses)
                places[load, k] = self._places[key]

    def _with_known(
        self, expr: sympy.Expr, dtype: types.DType, places: Mapping[tuple[sympy.Expr, int], str]
    ) -> ScalarValue:
        return ScalarValue(expr, dtype, {e: name for e, name in self._known.items() if expr.has(e)}, places)

    def _fixed_conditions(self, expr: sympy.Expr) -> list[sympy.Expr]:
        """Conditions of its choices that are the same in all iterations and were not evaluated before."""
        conditions = dict.fromkeys(e.args[0] for e in sympy.preorder_traversal(expr) if isinstance(e, scalar.select))
        return [c for c in conditions if c.free_symbols and c not in self._known and self._is_fixed(c)]

    def _is_fixed_call(self, expr: sympy.Expr) -> bool:
        return isinstance(expr, scalar.TRANSCENDENTAL) and bool(expr.free_symbols) and self._is_fixed(expr)

    def _is_fixed(self, expr: sympy.Expr) -> bool:
        """Is it the same in all iterations? Loads and checks may fail, and are not."""
        if expr.has(scalar.load, scalar.checked):
            return False
        symbols = expr.free_symbols
        is_fixed = all(s.name in self._fixed for s in symbols if s in self._values)
        return is_fixed and all(s.name != self._counter for s in symbols)


def _outermost(expr: sympy.Expr, holds: Callable[[sympy.Expr], bool]) -> Iterator[sympy.Expr]:
    """The largest parts of an expression for which something holds."""
    if holds(expr):
        yield expr
    else:
        for argument in expr.args:
            yield from _outermost(argument, holds)


def _evaluated_loads(expr: sympy.Expr) -> Iterator[sympy.Expr]:
    """Loads that are done whatever the values are: none of those in a choice, whose branches are not all evaluated."""
    if isinstance(expr, scalar.load):
        yield expr
    if not expr.args or not isinstance(expr, (scalar.load, sympy.Add, sympy.Mul)):
        return
    for argument in expr.args:
        yield from _evaluated_loads(argument)

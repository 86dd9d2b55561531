"""The innermost code of a kernel: loads, computation, stores and accumulation of statements in one iteration."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import replace
from typing import TypeAlias

import dace
import sympy

from daceopt.codegen.accumulator import Accumulator
from daceopt.codegen.c_tree import Assign, Declare, ElementLoad, If, Name, ScalarValue, Statement, Stored
from daceopt.codegen.lookups import Lookups
from daceopt.codegen.names import Names
from daceopt.codegen.scalar.algebra import simplify
from daceopt.codegen.scalar.printer import convert
from daceopt.codegen.tree_passes.invariant_code import InvariantCode
from daceopt.codegen.tree_passes.keep_narrow_bits import keep_narrow_bits
from daceopt.codegen.tree_passes.opaque_steps import opaque_steps
from daceopt.codegen.tree_passes.rounding_stores import stored_value
from daceopt.codegen.tree_passes.unrolled_values import unrolled_values
from daceopt.ir.access.references import KernelBuffer, Reference, StatementInstance
from daceopt.ir.kernel.tasklet import Assignment, eliminate_dead, share, substitute
from daceopt.ir.scalar import scalar, types
from daceopt.ir.schedule.schedule import Loop

_ElementKey: TypeAlias = tuple[KernelBuffer, frozenset[object], object, tuple[object, ...]]


class Leaf:
    """Code of one iteration of ``bodies``: ``statements``, and ``before``, which is before the loop ``inner``.

    ``accumulators`` collect reductions, ``registers`` need no memory; ``guard``: the condition of a store into a
    buffer, where not every thread is to do it. ``inner``: the vector loop directly around. ``unrolled``: the loop
    between ``inner`` and the code, if there is one. ``packed``: where an element is that was loaded with its
    neighbours, and is stored with them; None: in its array. ``checks_index``, ``checks_before``: may the one or the
    other find that an index is outside?
    """

    def __init__(
        self,
        names: Names,
        bodies: Sequence[StatementInstance],
        accumulators: Mapping[tuple[int, str], Accumulator],
        registers: Set[str],
        guard: Callable[[KernelBuffer], str] = lambda _: "",
        inner: Loop | None = None,
        unrolled: Loop | None = None,
        packed: Callable[[Reference], str | None] = lambda _: None,
    ):
        lowering = _Lowering(names, accumulators, registers, guard, packed)
        code = lowering.run(bodies)
        lookups = Lookups(names, lowering.values, lowering.loads)
        self.before: list[Statement] = []
        self.checks_before, first = False, frozenset[str]()
        if inner is not None:
            if any(a.expr.has(*scalar.TRANSCENDENTAL) for body in bodies for a in body.assignments):
                self.before, code = opaque_steps(code, inner, names)
            written = {r.buffer.array for body in bodies for r in body.writes.values()}
            invariant = InvariantCode(names, inner, lowering.values, lowering.shared, lookups, written)
            code, first = invariant.run(code)
            self.checks_before = invariant.checks
        code = [replace(s, value=lookups.lower(s.value)) if isinstance(s, Declare) else s for s in code]
        self.checks_index = lookups.checks
        moved = [s for s in code if isinstance(s, Declare) and s.name in first]
        self.statements = keep_narrow_bits([s for s in code if not isinstance(s, Declare) or s.name not in first])
        if unrolled is None:
            self.before += moved
        else:
            arrays, self.statements = unrolled_values(moved, self.statements, unrolled, names)
            self.before += arrays


class _Lowering:
    """Statements of a kernel as C: ``values`` are the types of symbols, ``loads`` what ``load`` reads, ``shared`` the
    symbols that several expressions have in common.

    What is read of an array behind its stores may be one of its new elements: what comes before is a stage of its own.
    """

    def __init__(
        self,
        names: Names,
        accumulators: Mapping[tuple[int, str], Accumulator],
        registers: Set[str],
        guard: Callable[[KernelBuffer], str],
        packed: Callable[[Reference], str | None],
    ):
        self._names, self._accumulators, self._registers = names, accumulators, registers
        self._guard, self._packed = guard, packed
        self.values: dict[sympy.Symbol, types.DType] = {}
        self.loads: dict[sympy.Symbol, Reference] = {}
        self.shared: dict[str, sympy.Symbol] = {}
        self._elements: dict[_ElementKey, sympy.Symbol] = {}
        self._written: dict[
            str, set[_ElementKey]
        ] = {}  # array of the graph -> its elements with a store that is to come
        self._code: list[Assignment] = []
        self._stores: list[tuple[sympy.Symbol, Statement]] = []
        self._statements: list[Statement] = []

    def run(self, bodies: Sequence[StatementInstance]) -> list[Statement]:
        for body in bodies:
            if any(self._is_stored(r) for r in body.reads.values()):
                self._finish(self._elements.values())
            self._body(body)
        self._finish()
        return self._statements

    def _body(self, body: StatementInstance) -> None:
        mapping = {connector: self._read(reference) for connector, reference in body.reads.items()}
        renaming: dict[sympy.Symbol, sympy.Symbol] = {}
        for a in body.assignments:
            free = a.free_symbols - renaming.keys()
            renamed = {s: mapping[s.name] for s in free if s.name in mapping}
            renaming |= renamed | self._names.canonical(free - set(renamed))
            symbol = self._value(a.dtype)
            self._code.append(Assignment(symbol, substitute(a.expr, renaming), a.dtype))
            renaming[a.symbol] = symbol
        by_name = {s.name: v for s, v in renaming.items()}
        for connector, reference in body.writes.items():
            self._write(by_name[connector], reference, self._accumulators.get((body.statement, connector)))

    def _value(self, dtype: types.DType) -> sympy.Symbol:
        symbol = self._names.value(dtype)
        self.values[symbol] = dtype
        return symbol

    def _is_stored(self, reference: Reference) -> bool:
        """Must it be read of memory, where statements before it have stores to come?"""
        written = () if reference.buffer.local else self._written.get(reference.buffer.array, ())
        is_exact = _element_key(reference) in written and not types.is_narrow(reference.buffer.dtype)
        return bool(written) and not is_exact

    def _read(self, reference: Reference) -> sympy.Symbol:
        key = _element_key(reference)
        if key in self._elements:
            return self._elements[key]
        dtype = types.compute_type(reference.buffer.dtype)
        symbol = self._elements[key] = self._value(dtype)
        if reference.whole:
            self.loads[symbol] = reference
        else:
            packed = self._packed(reference)
            load = ElementLoad(
                packed or self._names.element(reference), reference.buffer.dtype, None if packed else reference
            )
            self._statements.append(Declare(types.cpp(dtype), symbol.name, load, const=True))
        return symbol

    def _write(self, value: sympy.Symbol, reference: Reference, collector: Accumulator | None) -> None:
        buffer = reference.buffer
        if collector is not None:
            self._stores.append((value, self._collect(value, collector)))
            return
        self._elements[_element_key(reference)] = value
        if not buffer.local:
            self._written.setdefault(buffer.array, set()).add(_element_key(reference))
        if buffer.local and buffer.array in self._registers:
            return
        symbol = stored_value(value, buffer.dtype, self._code, self.values, self._names)
        same = self.values[symbol] == types.compute_type(buffer.dtype)
        stored = Stored(Name(symbol.name) if same else self._convert(symbol, buffer.dtype), buffer.dtype)
        element = self._packed(reference) or self._names.element(reference)
        store, condition = Assign(element, stored, uses=frozenset([symbol.name])), self._guard(buffer)
        self._stores.append((symbol, If(condition, store) if condition else store))

    def _convert(self, value: sympy.Symbol, dtype: types.DType) -> str:
        return convert(value.name, self.values[value], types.compute_type(dtype))

    def _collect(self, value: sympy.Symbol, a: Accumulator) -> Statement:
        code, uses = self._convert(value, a.target.buffer.dtype), frozenset([value.name])
        if types.is_bool(a.dtype):
            code = convert(code, a.dtype, dace.uint8)
        return a.add_in_lanes(code, uses) if a.lanes else a.add(self._names, code, uses)

    def _finish(self, values: Iterable[sympy.Symbol] = ()) -> None:
        """A stage, what has been noted so far, with its stores; ``values`` may be needed behind it."""
        live = [v.name for v in (*(v for v, _ in self._stores), *values)]
        code = eliminate_dead(share(simplify(self._code, self.values), self.values, live), live)
        self.shared |= {a.symbol.name: a.symbol for a in code if a.symbol not in self.values}
        self.values |= {a.symbol: a.dtype for a in code}
        self._statements += [
            Declare(types.cpp(a.dtype), a.symbol.name, ScalarValue(a.expr, a.dtype), const=True) for a in code
        ]
        self._statements += [statement for _, statement in self._stores]
        self._elements = {k: v for k, v in self._elements.items() if k[0].array not in self._written or k[0].local}
        self._code, self._stores, self._written = [], [], {}


def _element_key(reference: Reference) -> _ElementKey:
    return reference.buffer, frozenset(reference.steps), reference.rest, reference.whole

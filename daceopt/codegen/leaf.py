"""The innermost code of a kernel: loads, computation, stores and accumulation of statements in one iteration."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from math import prod
from typing import Any

import sympy

from daceopt.codegen.names import Names
from daceopt.codegen.scalar.algebra import simplify
from daceopt.codegen.scalar.printer import Printer, statements
from daceopt.ir import scalar, types
from daceopt.ir.graph import Dim, dim
from daceopt.ir.references import KernelBuffer, Reference, StatementInstance
from daceopt.ir.schedule import Loop
from daceopt.ir.tasklet import Assignment, eliminate_dead, share


@dataclass(frozen=True)
class Accumulator:
    """Where a reduction collects: a scalar, or an array over the loops ``dims`` that are kept.

    ``private``: each thread has one, because a parallel loop is reduced. ``lanes``: a vector loop collects in it.
    ``outer``: the accumulator that it is added to in the end; None: it is stored into ``target``.
    """

    name: str
    op: str
    dtype: types.DType
    dims: tuple[Loop, ...]
    target: Reference
    private: bool = False
    lanes: bool = False
    outer: Accumulator | None = None

    @property
    def size(self) -> Dim:
        return dim(prod(loop.extent for loop in self.dims))

    @property
    def cpp(self) -> str:
        return types.cpp(self.dtype)

    @property
    def notes_nan(self) -> bool:
        """A vector loop's own maximum passes NaN over, so it is noted beside it."""
        return self.lanes and self.op in ("max", "min") and types.is_float(self.dtype)

    @property
    def total(self) -> str:
        """What a scalar accumulator has collected."""
        return f"({self.name}_nan ? dop::nan<{self.cpp}>() : {self.name})" if self.notes_nan else self.name

    @property
    def clause(self) -> str:
        """What OpenMP is told where lanes collect in it."""
        operator = {"sum": "+", "prod": "*"}.get(self.op, self.op)
        if types.is_bool(self.dtype):
            operator = {"max": "|", "min": "&"}[self.op]
        nan = f" reduction(| : {self.name}_nan)" if self.notes_nan else ""
        return f" reduction({operator} : {self.name}){nan}"

    def index(self, names: Names) -> str:
        """Position in the array of kept elements, row-major."""
        code = "0"
        for k, loop in enumerate(self.dims):
            here = names.loop(loop.param)
            code = here if k == 0 else f"({code}) * {names.size_text(loop.extent)} + {here}"
        return code

    def add(self, names: Names, value: str) -> str:
        """Statement that adds a value to the accumulator."""
        here = f"{self.name}[{self.index(names)}]" if self.dims or self.private else self.name
        return f"{here} = {self.join(here, value)};"

    def join(self, a: str, b: str) -> str:
        """The reduction of two values, as an expression."""
        if self.op in ("max", "min"):
            return f"dop::{self.op}imum<{self.cpp}>({a}, {b})"
        return f"{a} {'+' if self.op == 'sum' else '*'} {self.cpp}({b})"


def identity(op: str, dtype: types.DType) -> str:
    """The value from which a reduction starts."""
    if op in ("max", "min"):
        return f"dop::{'lowest' if op == 'max' else 'highest'}<{types.cpp(dtype)}>::value"
    return f"{types.cpp(dtype)}({0 if op == 'sum' else 1})"


class Leaf:
    """Code of one iteration of ``bodies``; ``accumulators`` collect their reductions, ``registers`` need no memory;
    ``guard``: what stands before a store into a buffer, where not every thread is to do it."""

    def __init__(
        self,
        names: Names,
        bodies: Sequence[StatementInstance],
        accumulators: Mapping[tuple[int, str], Accumulator],
        registers: Set[str],
        guard: Callable[[KernelBuffer], str] = lambda _: "",
    ):
        self._names, self._accumulators, self._registers = names, accumulators, registers
        self._guard = guard
        self.checks_index = False
        self._types: dict[Any, types.DType] = {}
        self._loads: dict[Any, Reference] = {}
        self._elements: dict[Any, sympy.Symbol] = {}
        self._lines: list[str] = []
        self._stores: list[tuple[sympy.Symbol, str]] = []
        self._code: list[Assignment] = []
        self._written: dict[str, set[Any]] = {}  # array of the graph -> its elements with a store that is to come
        for body in bodies:
            if any(self._is_stored(r) for r in body.reads.values()):
                self._finish(self._elements.values())
            self._body(body)
        self._finish()

    def lines(self) -> list[str]:
        return self._lines

    # ---------------------------------------------------------------- one stage

    def _body(self, body: StatementInstance) -> None:
        mapping = {connector: self._read(reference) for connector, reference in body.reads.items()}
        renaming: dict[sympy.Symbol, sympy.Symbol] = {}
        for a in body.assignments:
            free = a.expr.free_symbols - set(renaming)
            known = {s: mapping[str(s)] for s in free if str(s) in mapping}
            renaming |= known | self._names.canonical(free - set(known))
            symbol = self._names.value(a.dtype)
            self._types[symbol] = a.dtype
            self._code.append(Assignment(symbol, a.expr.xreplace(renaming), a.dtype))
            renaming[a.symbol] = symbol
        by_name = {str(s): v for s, v in renaming.items()}
        for connector, reference in body.writes.items():
            self._write(by_name[connector], reference, self._accumulators.get((body.statement, connector)))

    def _is_stored(self, reference: Reference) -> bool:
        """Must it be read of memory, where statements before it have stores to come?"""
        written = () if reference.buffer.local else self._written.get(reference.buffer.array, ())
        known = _element_key(reference) in written and not types.is_narrow(reference.buffer.dtype)
        return bool(written) and not known

    def _read(self, reference: Reference) -> sympy.Symbol:
        key = _element_key(reference)
        if key in self._elements:
            return self._elements[key]
        dtype = types.computed(reference.buffer.dtype)
        symbol = self._names.value(dtype)
        self._types[symbol] = dtype
        self._elements[key] = symbol
        if reference.whole:
            self._loads[symbol] = reference
        else:
            element = loaded(self._names.element(reference), reference.buffer.dtype)
            self._lines.append(f"const {types.cpp(dtype)} {symbol} = {element};")
        return symbol

    def _write(self, value: sympy.Symbol, reference: Reference, collector: Accumulator | None) -> None:
        if collector is not None:
            self._stores.append((value, self._collect(value, collector)))
            return
        self._elements[_element_key(reference)] = value
        buffer = reference.buffer
        if not buffer.local:
            self._written.setdefault(buffer.array, set()).add(_element_key(reference))
        if not (buffer.local and buffer.array in self._registers):
            code = stored(self._converted(value, types.computed(buffer.dtype)), buffer.dtype)
            self._stores.append((value, f"{self._guard(buffer)}{self._names.element(reference)} = {code};"))

    def _converted(self, value: sympy.Symbol, dtype: types.DType) -> str:
        if self._types[value] == dtype:
            return str(value)
        return f"({value} != 0)" if types.is_bool(dtype) else f"{types.cpp(dtype)}({value})"

    def _collect(self, value: sympy.Symbol, a: Accumulator) -> str:
        code = self._converted(value, types.computed(a.target.buffer.dtype))
        if not a.lanes:
            return a.add(self._names, code)
        if a.op in ("sum", "prod"):
            return f"{a.name} {'+' if a.op == 'sum' else '*'}= {code};"
        compared = f"{a.name} = {code} {'>' if a.op == 'max' else '<'} {a.name} ? {code} : {a.name};"
        return f"{compared} {a.name}_nan |= {code} != {code};" if a.notes_nan else compared

    # ---------------------------------------------------------------- all stages together

    def _finish(self, values: Iterable[sympy.Symbol] = ()) -> None:
        """What has been noted so far, with its stores; ``values`` may be needed behind it.

        What is read from there on of an array that was stored may be one of its new elements.
        """
        live = [str(v) for v in (*(v for v, _ in self._stores), *values)]
        code = simplify(self._code, self._types)
        code = eliminate_dead(share(code, self._types, live), live)
        self._types |= {a.symbol: a.dtype for a in code}
        printer = Printer(self._types, loads=self._load)
        self._lines += statements(code, printer, {a.symbol: str(a.symbol) for a in code})
        self._lines += [statement for _, statement in self._stores]
        self.checks_index |= any(a.expr.has(scalar.checked) for a in code)
        self._elements = {k: v for k, v in self._elements.items() if k[0].array not in self._written or k[0].local}
        self._code, self._stores, self._written = [], [], {}

    def _load(self, array: sympy.Symbol, index: list[str]) -> str:
        self.checks_index = True
        reference = self._loads[array]
        terms = [
            f"dop::index({i}, {self._names.size_text(extent)}, bad) * {self._names.size_text(stride)}"
            for i, (extent, stride) in zip(index, reference.whole, strict=True)
        ]
        base = self._names.address(reference)
        element = f"{self._names.buffer(reference.buffer)}[{' + '.join([*terms, *([base] if base != '0' else [])])}]"
        value = loaded(element, reference.buffer.dtype)
        unsure = [(i, e) for i, (e, _) in zip(index, reference.whole) if not isinstance(e, int) or e < 1]
        if not unsure:
            return value
        exists = " && ".join(f"{self._names.size_text(e)} > 0" for e in dict.fromkeys(e for _, e in unsure))
        missing = ", ".join(dict.fromkeys(i for i, _ in unsure))
        return (
            f"({exists} ? {value} : dop::nothing<{types.cpp(types.computed(reference.buffer.dtype))}>(bad, {missing}))"
        )


def loaded(element: str, dtype: types.DType) -> str:
    """An element of memory as a value of the type in which it is computed."""
    return f"dop::{types.name_of(dtype)}::load({element})" if types.is_narrow(dtype) else element


def stored(value: str, dtype: types.DType) -> str:
    """A value of the type in which ``dtype`` is computed, as it is kept in memory."""
    return f"dop::{types.name_of(dtype)}::store({value})" if types.is_narrow(dtype) else value


def _element_key(reference: Reference) -> Any:
    return reference.buffer, frozenset(reference.steps), reference.rest, reference.whole

"""The innermost code of a kernel: loads, computation, stores and accumulation of statements in one iteration."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

import dace
import sympy

from daceopt.codegen.lines import Line, store_bits
from daceopt.codegen.names import Names
from daceopt.codegen.scalar.algebra import simplify
from daceopt.codegen.scalar.printer import Printer, convert, statements
from daceopt.ir.access.references import KernelBuffer, Param, Reference, StatementInstance
from daceopt.ir.kernel.tasklet import Assignment, eliminate_dead, share, substitute
from daceopt.ir.scalar import functions, scalar, types
from daceopt.ir.scalar.dims import Dim, dim
from daceopt.ir.schedule.schedule import Loop

_VECTOR_BYTES = 64  # of the widest vectors
_VALUE = re.compile(r"v\d+")
_NAME = re.compile(r"\bv\d+\b")  # of a value
_HALVES = ("bfloat16", "float16")  # storing rounds a float to them as a cast does; of others, beyond their range not


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
        """Its type: truth is collected in bytes, for gcc takes lanes of bools apart."""
        return "uint8_t" if types.is_bool(self.dtype) else types.cpp(self.dtype)

    @property
    def operator(self) -> str:
        """What joins two values, where C++ has an operator for it."""
        of_truth = {"max": "|", "min": "&"} if types.is_bool(self.dtype) else {}
        return {"sum": "+", "prod": "*", **of_truth}.get(self.op, "")

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
        nan = f" reduction(| : {self.name}_nan)" if self.notes_nan else ""
        return f" reduction({self.operator or self.op} : {self.name}){nan}"

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
        if not self.operator:
            return f"dop::{self.op}imum<{self.cpp}>({a}, {b})"
        return f"{a} {self.operator} {self.cpp}({b})"


def identity(op: str, dtype: types.DType) -> str:
    """The value from which a reduction starts."""
    if op in ("max", "min"):
        return f"dop::{'lowest' if op == 'max' else 'highest'}<{types.cpp(dtype)}>::value"
    return f"{types.cpp(dtype)}({0 if op == 'sum' else 1})"


class Leaf:
    """Code of one iteration of ``bodies``; ``accumulators`` collect their reductions, ``registers`` need no memory;
    ``guard``: what stands before a store into a buffer, where not every thread is to do it.

    ``inner``: the vector loop directly around. Elements that none of its iterations changes are loaded before it
    (``before``): gcc takes them for changed by the loop's stores, whose pointers are not restricted any more inside of
    a parallel region, and does not vectorise a loop that loads one anew for the next iteration. Where the loop surely
    runs, so are positions looked up (of a checked index inside, gcc makes a gather) and functions of such values
    computed (gcc would call them again in each). ``unrolled``: the loop between ``inner`` and the code, if there is
    one, for each of whose iterations there are such values. Steps of ``inner`` longer than a vector are hidden
    (``dop::opaque``): gcc 12 looks for what stands between elements at a known distance, and gives up; those at an
    unknown one it loads one by one, and computes with vectors. ``packed``: where an element stands that was loaded
    with its neighbours, and is stored with them; None: in its array.
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
        self._packed = packed
        self._names, self._accumulators, self._registers = names, accumulators, registers
        self._guard, self._inner, self._unrolled = guard, inner, unrolled
        self._surely_runs = inner is not None and isinstance(inner.extent, int) and inner.extent > 0 and not inner.rest
        self.checks_index, self.checks_before = False, False
        self._sure: set[sympy.Expr] = set()  # loads that the code printed now surely does
        self._same: set[str] = set()  # elements that are the same in all iterations of ``inner``
        self._fixed: set[str] = set()  # values that are the same in all iterations of ``inner``
        self._places: dict[tuple[str, Dim, Dim], str] = {}  # checked index, extent, stride -> what was looked up before
        self._calls: dict[sympy.Expr, str] = {}  # call -> what was computed before
        self._steps: dict[int, str] = {}  # of ``inner`` -> its name
        self._is_costly = any(a.expr.has(*scalar.TRANSCENDENTAL) for body in bodies for a in body.assignments)
        self._types: dict[Any, types.DType] = {}
        self._loads: dict[Any, Reference] = {}
        self._elements: dict[Any, sympy.Symbol] = {}
        self._lines: list[Line] = []
        self._stores: list[tuple[sympy.Symbol, str]] = []
        self._code: list[Assignment] = []
        self._written: dict[str, set[Any]] = {}  # array of the graph -> its elements with a store that is to come
        self._arrays_written = {r.buffer.array for body in bodies for r in body.writes.values()}
        for body in bodies:
            if any(self._is_stored(r) for r in body.reads.values()):
                self._finish(self._elements.values())
            self._body(body)
        self._finish()

    def lines(self) -> list[str]:
        here = [line.text for line in self._lines if line.defines not in self._before]
        return [*(f"const {cpp} {name} = {name}_at[{self._step}];" for name, cpp in self._arrays.items()), *here]

    def before(self) -> list[str]:
        """What stands before the loop ``inner``."""
        steps = [f"const int64_t {name} = dop::opaque({step});" for step, name in self._steps.items()]
        lines = [line.text for line in self._lines if line.defines in self._before]
        if self._unrolled is None or not lines:
            return [*steps, *lines]
        arrays = [f"{cpp} {name}_at[{self._unrolled.extent}];" for name, cpp in self._arrays.items()]
        start = f"for (int64_t {self._step} = 0; {self._step} < {self._unrolled.extent}; ++{self._step}) {{"
        kept = [f"{name}_at[{self._step}] = {name};" for name in self._arrays]
        return [*steps, *arrays, start, *(f"  {line}" for line in (*lines, *kept)), "}"]

    @property
    def _step(self) -> str:
        assert self._unrolled is not None
        return self._names.loop(self._unrolled.param)

    @cached_property
    def _arrays(self) -> dict[str, str]:
        """The values of each iteration of ``unrolled`` that are computed before and used inside, with their types."""
        if self._unrolled is None:
            return {}
        used = {name for line in self._lines if line.defines not in self._before for name in _NAME.findall(line.text)}
        made = [line for line in self._lines if line.defines in self._before and line.defines in used]
        return {line.defines: line.text.removeprefix("const ").partition(" ")[0] for line in made}

    @cached_property
    def _before(self) -> frozenset[str]:
        """The elements, positions and calls that come before, and the values that they need."""
        needed = {*self._same, *self._places.values(), *self._calls.values()}
        for line in reversed(self._lines):
            if line.defines in needed:
                needed |= line.uses & self._fixed
        return frozenset(needed)

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
            self._code.append(Assignment(symbol, substitute(a.expr, renaming), a.dtype))
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
        dtype = types.compute_type(reference.buffer.dtype)
        symbol = self._names.value(dtype)
        self._types[symbol] = dtype
        self._elements[key] = symbol
        if reference.whole:
            self._loads[symbol] = reference
        else:
            element = load_text(self._element(reference, self._opaque_step(reference)), reference.buffer.dtype)
            if self._is_same(reference):
                self._same.add(str(symbol))
                element = element if self._surely_runs else f"{self._runs()} ? {element} : {types.cpp(dtype)}(0)"
            self._lines.append(Line(f"const {types.cpp(dtype)} {symbol} = {element};", str(symbol)))
            if self._surely_runs and str(symbol) in self._same:
                self._fixed.add(str(symbol))
        return symbol

    def _runs(self) -> str:
        """Does ``inner`` run at all?"""
        assert self._inner is not None
        sizes = [self._inner.extent, *([] if self._inner.rest is None else [self._inner.rest])]
        return " && ".join(f"{self._names.size_text(n)} > 0" for n in sizes)

    def _is_same(self, reference: Reference) -> bool:
        """Is it the same element, which nothing here writes, in all iterations of ``inner``?"""
        if self._inner is None or reference.buffer.array in self._arrays_written:
            return False
        return self._inner.param not in reference.params()

    def _write(self, value: sympy.Symbol, reference: Reference, collector: Accumulator | None) -> None:
        if collector is not None:
            self._stores.append((value, self._collect(value, collector)))
            return
        self._elements[_element_key(reference)] = value
        buffer = reference.buffer
        if not buffer.local:
            self._written.setdefault(buffer.array, set()).add(_element_key(reference))
        if not (buffer.local and buffer.array in self._registers):
            kept = self._exact_source(value, buffer.dtype)
            code = store_text(self._convert(kept, types.compute_type(buffer.dtype)), buffer.dtype)
            self._stores.append((kept, f"{self._guard(buffer)}{self._element(reference)} = {code};"))

    def _exact_source(self, value: sympy.Symbol, dtype: types.DType) -> sympy.Symbol:
        """What ``value`` is rounded from, where storing it as ``dtype`` rounds that alike."""
        where = next((k for k, a in enumerate(self._code) if a.symbol == value), None)
        if where is None or types.name_of(dtype) not in _HALVES:
            return value
        made, wide = self._code[where], types.compute_type(dtype)
        if not isinstance(made.expr, functions.CLASSES[f"cast_{types.name_of(dtype)}"]):
            return value
        (source,) = made.expr.args
        if scalar.Types(self._types).strong(source, wide) != wide:
            return value
        if source.is_Symbol:
            return source
        symbol = self._names.value(wide)
        self._types[symbol] = wide
        self._code[where : where + 1] = [Assignment(symbol, source, wide), replace(made, expr=made.expr.func(symbol))]
        return symbol

    def _element(self, reference: Reference, steps: Mapping[Param, str] | None = None) -> str:
        return self._packed(reference) or self._names.element(reference, steps)

    def _opaque_step(self, reference: Reference) -> dict[Param, str]:
        """The name of a step along ``inner`` that gcc must not know; nothing where computing costs less than loads."""
        if self._inner is None or not self._is_costly:
            return {}
        step = reference.step(self._inner.param)
        if not isinstance(step, int) or abs(step) * reference.buffer.dtype.bytes <= _VECTOR_BYTES:
            return {}
        self._steps[step] = self._steps.get(step) or self._names.step()
        return {self._inner.param: self._steps[step]}

    def _convert(self, value: sympy.Symbol, dtype: types.DType) -> str:
        return convert(str(value), self._types[value], dtype)

    def _collect(self, value: sympy.Symbol, a: Accumulator) -> str:
        code = self._convert(value, types.compute_type(a.target.buffer.dtype))
        if types.is_bool(a.dtype):
            code = convert(code, a.dtype, dace.uint8)
        if not a.lanes:
            return a.add(self._names, code)
        if a.operator:
            return f"{a.name} {a.operator}= {code};"
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
        printer = Printer(self._types, loads=self._load, computed=self._calls)
        self._lines += self._definitions(code, printer)
        stores = [
            store_bits(self._lines, statement, self._same) for _, statement in self._stores
        ]  # which may add lines
        self._lines += [Line(statement) for statement in stores]
        self.checks_index |= any(a.expr.has(scalar.checked) for a in code)
        self._elements = {k: v for k, v in self._elements.items() if k[0].array not in self._written or k[0].local}
        self._code, self._stores, self._written = [], [], {}

    def _definitions(self, code: Sequence[Assignment], printer: Printer) -> Iterator[Line]:
        """One line for each assignment, behind those that look up its positions and make its calls."""
        for a in code:
            yield from self._calls_before(a, printer)
            self._sure = set(_evaluated_loads(a.expr)) if self._surely_runs else set()
            name = str(a.symbol)
            if self._is_fixed(a.expr):
                self._fixed.add(name)
                if not _VALUE.fullmatch(name):  # it may stand before the loop, beside what others have called alike
                    self._calls[a.symbol] = name = str(self._names.value(a.dtype))
                    self._fixed.add(name)
            yield self._line(a, printer, {a.symbol: name})  # which may look up positions

    def _line(self, a: Assignment, printer: Printer, names: Mapping[Any, str]) -> Line:
        (text,) = statements([a], printer, names)
        uses = {*map(str, a.expr.free_symbols), *(name for call, name in self._calls.items() if a.expr.has(call))}
        return Line(text, names[a.symbol], frozenset(uses))

    def _calls_before(self, a: Assignment, printer: Printer) -> Iterator[Line]:
        """Those of its calls and conditions that come before, and were not made for another assignment.

        They stay in the expression, whose terms are added in an order that SymPy finds by what they are.
        """
        if not self._surely_runs:
            return
        infer = scalar.Types(self._types)
        for call in _outermost(a.expr, self._is_fixed_call):
            if call not in self._calls:
                yield self._line_before(call, infer.strong(call, a.dtype), printer)
        for condition in self._fixed_conditions(a.expr):
            line = self._line_before(condition, dace.bool_, printer)
            yield replace(line, text=line.text.replace("const bool", "const dop::Mask", 1))

    def _line_before(self, expr: sympy.Expr, dtype: types.DType, printer: Printer) -> Line:
        """Computes ``expr`` before the loop, wherever it occurs from here on."""
        symbol = self._names.value(dtype)
        line = self._line(Assignment(symbol, expr, dtype), printer, {symbol: str(symbol)})
        self._calls[expr] = str(symbol)
        self._fixed.add(str(symbol))
        return line

    def _fixed_conditions(self, expr: sympy.Expr) -> list[sympy.Expr]:
        """Conditions of its choices that are the same in all iterations of ``inner`` and were not evaluated before."""
        conditions = dict.fromkeys(e.args[0] for e in sympy.preorder_traversal(expr) if isinstance(e, scalar.select))
        return [c for c in conditions if c.free_symbols and c not in self._calls and self._is_fixed(c)]

    def _is_fixed_call(self, expr: sympy.Expr) -> bool:
        return isinstance(expr, scalar.TRANSCENDENTAL) and bool(expr.free_symbols) and self._is_fixed(expr)

    def _is_fixed(self, expr: sympy.Expr) -> bool:
        """Is it the same in all iterations of ``inner``, which surely runs? Loads and checks may fail, and are not."""
        if self._inner is None or not self._surely_runs or expr.has(scalar.load, scalar.checked):
            return False
        counter = self._names.loop(self._inner.param)
        values = {str(s) for s in expr.free_symbols if s in self._types}
        return values <= self._fixed and counter not in map(str, expr.free_symbols)

    def _place(self, text: str, expr: sympy.Expr | None, extent: Dim, stride: Dim) -> str:
        """The distance of a checked index from the first element of its axis; None: of one that may not be wanted."""
        code = f"dop::index({text}, {self._names.size_text(extent)}, bad) * {self._names.size_text(stride)}"
        if expr is None or not self._is_fixed(expr):
            self.checks_index = True
            return code
        self.checks_before = True
        known = self._places.get((text, extent, stride))
        if known is None:
            known = self._places[text, extent, stride] = str(self._names.value(dace.int64))
            uses = frozenset(map(str, expr.free_symbols))
            self._lines.append(Line(f"const int64_t {known} = {code};", known, uses))
        return known

    def _is_inside(self, index: sympy.Expr, extent: Dim) -> bool:
        """Is it a place of its axis, so that nothing is left to check: as loops run, or as it was brought inside?"""
        if self._names.is_inside(index, extent):
            return True
        if not isinstance(index, scalar.minimum) or not isinstance(extent, int) or extent < 1:
            return False
        low, high = index.args
        is_inside = high == extent - 1 and isinstance(low, scalar.maximum) and low.args[1] == 0
        return is_inside and types.is_integer(scalar.Types(self._types).strong(index, dace.int64))

    def _load(self, array: sympy.Symbol, index: list[str], places: Sequence[sympy.Expr]) -> str:
        reference = self._loads[array]
        axes = zip(index, places, reference.whole, strict=True)
        is_sure = scalar.load(array, *places) in self._sure
        terms = [
            f"{text} * {self._names.size_text(axis[1])}"
            if self._is_inside(expr, axis[0])
            else self._place(text, expr if is_sure else None, *axis)
            for text, expr, axis in axes
        ]
        base = self._names.address(reference)
        element = f"{self._names.buffer(reference.buffer)}[{' + '.join([*terms, *([base] if base != '0' else [])])}]"
        value = load_text(element, reference.buffer.dtype)
        unsure = [
            (i, e)
            for i, p, (e, _) in zip(index, places, reference.whole)
            if (not isinstance(e, int) or e < 1) and not self._names.is_inside(p, e)
        ]
        if not unsure:
            return value
        self.checks_index = True
        exists = " && ".join(f"{self._names.size_text(e)} > 0" for e in dict.fromkeys(e for _, e in unsure))
        missing = ", ".join(dict.fromkeys(i for i, _ in unsure))
        computed = types.cpp(types.compute_type(reference.buffer.dtype))
        return f"({exists} ? {value} : dop::nothing<{computed}>(bad, {missing}))"


def load_text(element: str, dtype: types.DType) -> str:
    """An element of memory as a value of the type in which it is computed."""
    if types.is_bool(dtype):
        return f"dop::truth({element})"
    return f"dop::{types.name_of(dtype)}::load({element})" if types.is_narrow(dtype) else element


def store_text(value: str, dtype: types.DType) -> str:
    """A value of the type in which ``dtype`` is computed, as it is kept in memory."""
    return f"dop::{types.name_of(dtype)}::store({value})" if types.is_narrow(dtype) else value


def _element_key(reference: Reference) -> Any:
    return reference.buffer, frozenset(reference.steps), reference.rest, reference.whole


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

"""The innermost code of a kernel: loads, computation, stores and accumulation of one iteration of a group of stages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import dace
import sympy

from daceopt.build.algebra import simplify
from daceopt.build.loops import Body, Group
from daceopt.build.names import Names
from daceopt.build.printer import Printer, statements
from daceopt.build.references import Buffer, Param, Reference
from daceopt.ir import scalar, types
from daceopt.ir.graph import Dim, dim
from daceopt.ir.tasklet import Assignment, eliminate_dead, share

_COSTLY = (
    sympy.exp,
    sympy.log,
    sympy.tanh,
    sympy.sin,
    sympy.cos,
    sympy.erf,
    scalar.softplus,
    scalar.sigmoid,
    scalar.uniform,
)
_COSTLY_WEIGHT = 8


@dataclass(frozen=True)
class Accumulator:
    """Where a reduction collects: a scalar, or an array over ``dims`` (parameter -> extent) when some loops are kept.

    ``private``: each thread has one, because a parallel loop is reduced. ``in_register``: the vector loop is reduced
    and collects in a register first.
    """

    name: str
    op: str
    dtype: types.DType
    part_dtype: types.DType
    dims: tuple[tuple[Param, Dim], ...]
    target: Reference
    private: bool
    in_register: bool

    @property
    def kept_loops(self) -> tuple[Param, ...]:
        return tuple(p for p, _ in self.dims)

    @property
    def size(self) -> Dim:
        return dim(prod(e for _, e in self.dims))

    @property
    def cpp(self) -> str:
        return types.cpp(self.dtype)

    @property
    def part_cpp(self) -> str:
        return types.cpp(self.part_dtype)

    @property
    def notes_nan(self) -> bool:
        """The vector loop's own maximum passes NaN over, so it is noted beside it."""
        return self.op in ("max", "min") and types.is_float(self.part_dtype)

    @property
    def part(self) -> str:
        """What the vector loop collected."""
        part = f"{self.name}_part"
        return f"({self.name}_nan ? dop::nan<{self.part_cpp}>() : {part})" if self.notes_nan else part

    @property
    def widened(self) -> bool:
        return self.dtype != self.part_dtype

    def index(self, names: Names) -> str:
        """Position in the array of kept elements, row-major."""
        code = "0"
        for k, (p, extent) in enumerate(self.dims):
            code = names.loop(p) if k == 0 else f"({code}) * {names.size_text(extent)} + {names.loop(p)}"
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
    """Code of one iteration of ``group`` inside the loops ``outer``."""

    def __init__(
        self, names: Names, outer: Sequence[Param], group: Group, extents: dict[Param, Dim], registers: set[Buffer]
    ):
        self._names, self._outer, self._group, self._extents = names, tuple(outer), group, extents
        self._registers = registers
        self.accumulators: list[Accumulator] = []
        self.checks_index = False
        self._types: dict[Any, types.DType] = {}
        self._loads: dict[Any, Reference] = {}
        self._elements: dict[Any, sympy.Symbol] = {}
        self._lines: list[str] = []
        self._stores: list[tuple[sympy.Symbol, str]] = []
        self._code: list[Assignment] = []
        for body in group.bodies:
            self._body(body)
        self._finish()

    def lines(self) -> list[str]:
        return self._lines

    @property
    def cost(self) -> int:
        """Weight of one iteration: 1 for each few operations, more for transcendental functions."""
        nodes = sum(1 for a in self._code for _ in sympy.preorder_traversal(a.expr))
        costly = sum(1 for a in self._code for _ in a.expr.atoms(*_COSTLY))
        return 1 + nodes // 8 + _COSTLY_WEIGHT * costly

    # ---------------------------------------------------------------- one stage

    def _body(self, body: Body) -> None:
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
            self._write(by_name[connector], reference)

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

    def _write(self, value: sympy.Symbol, reference: Reference) -> None:
        outer = () if reference.buffer.local else self._outer  # a local lives inside one outer iteration
        loops = (*outer, *self._group.loops)
        reduced = [p for p in loops if p not in reference.params()] if reference.wcr else []
        if reduced:
            self._stores.append((value, self._accumulate(value, reference, reduced)))
            return
        self._elements[_element_key(reference)] = value
        if reference.buffer not in self._registers:
            dtype = reference.buffer.dtype
            code = stored(self._converted(value, types.computed(dtype)), dtype)
            self._stores.append((value, f"{self._names.element(reference)} = {code};"))

    def _converted(self, value: sympy.Symbol, dtype: types.DType) -> str:
        if self._types[value] == dtype:
            return str(value)
        return f"({value} != 0)" if types.is_bool(dtype) else f"{types.cpp(dtype)}({value})"

    def _accumulate(self, value: sympy.Symbol, reference: Reference, reduced: list[Param]) -> str:
        assert reference.wcr is not None
        private = any(p in self._outer for p in reduced)
        around = (*self._outer, *self._group.loops) if private else self._group.loops
        dims = tuple((p, self._group.extents.get(p, self._extents.get(p, 1))) for p in around if p not in reduced)
        part = types.computed(reference.buffer.dtype)
        wide = dace.float64 if part == dace.float32 and reference.wcr in ("sum", "prod") else part
        last = self._group.loops[-1] if self._group.loops else None
        a = Accumulator(
            self._names.accumulator(),
            reference.wcr,
            wide,
            part,
            dims,
            reference,
            private,
            last is not None and last in reduced,
        )
        self.accumulators.append(a)
        code = self._converted(value, part)
        if not a.in_register:
            return a.add(self._names, code)
        here = f"{a.name}_part"
        if a.op in ("sum", "prod"):
            return f"{here} {'+' if a.op == 'sum' else '*'}= {code};"
        compared = f"{here} = {code} {'>' if a.op == 'max' else '<'} {here} ? {code} : {here};"
        return f"{compared} {a.name}_nan |= {code} != {code};" if a.notes_nan else compared

    # ---------------------------------------------------------------- all stages together

    def _finish(self) -> None:
        live = [str(v) for v, _ in self._stores]
        code = simplify(self._code, self._types)
        code = eliminate_dead(share(code, self._types, live), live)
        self._types |= {a.symbol: a.dtype for a in code}
        printer = Printer(self._types, loads=self._load)
        self._lines += statements(code, printer, {a.symbol: str(a.symbol) for a in code})
        self._lines += [statement for _, statement in self._stores]
        self._code = list(code)
        self.checks_index |= any(a.expr.has(scalar.checked) for a in code)

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

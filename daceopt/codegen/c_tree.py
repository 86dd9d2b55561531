"""The C that a kernel becomes: statements as values, which passes rewrite (``tree_passes/``), and their text.

Expressions are text, but for those that passes look into.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import sympy

from daceopt.ir.access.references import Reference
from daceopt.ir.scalar import types
from daceopt.ir.scalar.dims import Dim

# ---------------------------------------------------------------- expressions


@dataclass(frozen=True)
class Name:
    """A value of its own type."""

    name: str


@dataclass(frozen=True)
class ElementLoad:
    """An element of memory, kept as ``dtype``, as a value of the type in which that is computed; ``reference`` says
    which element it is, where loops alone choose it."""

    element: str
    dtype: types.DType
    reference: Reference | None = None


@dataclass(frozen=True)
class Stored:
    """A value of the type in which ``dtype`` is computed, as it is kept in memory."""

    value: Name | str
    dtype: types.DType


@dataclass(frozen=True)
class Ternary:
    """``condition ? value : other``."""

    condition: str
    value: ElementLoad
    other: str


@dataclass(frozen=True)
class ScalarValue:
    """A scalar expression that is no text yet. ``known``: parts of it that have a variable already. ``places``: (load,
    number of its axis) -> the variable that has the position along it."""

    expr: sympy.Expr
    dtype: types.DType
    known: Mapping[sympy.Basic, str] = field(default_factory=dict)
    places: Mapping[tuple[sympy.Basic, int], str] = field(default_factory=dict)

    @property
    def uses(self) -> frozenset[str]:
        """The values and counters in its text."""
        return frozenset(self._names(self.expr))

    def _names(self, expr: sympy.Basic) -> Iterator[str]:
        if expr in self.known:
            yield self.known[expr]
        elif isinstance(expr, sympy.Symbol):
            yield expr.name
        else:
            for axis, part in enumerate(expr.args, -1):  # of a load, whose first argument is the array
                yield from [self.places[expr, axis]] if (expr, axis) in self.places else self._names(part)


@dataclass(frozen=True)
class Position:
    """The distance of a checked index from the first element of its axis, which is no text yet."""

    index: ScalarValue
    extent: Dim
    stride: Dim


Expr: TypeAlias = str | Name | ElementLoad | Stored | Ternary | ScalarValue | Position


def expression(value: Expr) -> str:
    """The text of an expression."""
    if isinstance(value, str):
        return value
    if isinstance(value, Name):
        return value.name
    if isinstance(value, ElementLoad):
        if types.is_bool(value.dtype):
            return f"dop::truth({value.element})"
        return f"{_converter(value.dtype)}load({value.element})" if types.is_narrow(value.dtype) else value.element
    if isinstance(value, Stored):
        inner = expression(value.value)
        return f"{_converter(value.dtype)}store({inner})" if types.is_narrow(value.dtype) else inner
    if isinstance(value, Ternary):
        return f"{value.condition} ? {expression(value.value)} : {value.other}"
    raise TypeError(f"{type(value).__name__} is no text yet")


def _converter(dtype: types.DType) -> str:
    return f"dop::{types.name_of(dtype)}::"


# ---------------------------------------------------------------- statements


@dataclass(frozen=True)
class Declare:
    """``type name = value;``, of an array ``type name[size];``. ``uses``: values that ``value`` is computed from."""

    type: str
    name: str
    value: Expr = ""
    const: bool = False
    size: str = ""
    uses: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Assign:
    """``target = value;`` or, with an operator, ``target += value;``. ``uses``: the value that is stored."""

    target: str
    value: Expr
    operator: str = ""
    uses: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Expression:
    """A call, or what else has no structure that matters."""

    text: str


@dataclass(frozen=True)
class Together:
    """Statements on one line."""

    parts: tuple[Assign, ...]


@dataclass(frozen=True)
class Pragma:
    """About the statement behind it."""

    text: str


@dataclass(frozen=True)
class Compound:
    """Statements with names of their own."""

    body: Body


@dataclass(frozen=True)
class For:
    """``counter`` from 0 to below ``extent``."""

    counter: str
    extent: str
    body: Body | Assign
    type: str = "int64_t"


@dataclass(frozen=True)
class If:
    """``condition`` may begin with a declaration."""

    condition: str
    body: Body | Assign | Expression
    otherwise: Body = ()


Statement: TypeAlias = Declare | Assign | Expression | Together | Pragma | Compound | For | If
Body: TypeAlias = tuple[Statement, ...]


def text(statements: Iterable[Statement], depth: int = 0) -> str:
    """Statements as lines, each of which begins with ``depth`` steps of two blanks."""
    return "\n".join(line for statement in statements for line in _lines(statement, "  " * depth))


def _lines(s: Statement, indent: str) -> Iterator[str]:
    if isinstance(s, Compound | For | If):
        yield from _compound(s, indent)
    elif isinstance(s, Pragma):
        yield f"{indent}#pragma {s.text}"
    else:
        yield indent + _simple(s)


def _simple(s: Any) -> str:
    if isinstance(s, Declare):
        size, value = f"[{s.size}]" if s.size else "", f" = {expression(s.value)}" if s.value else ""
        return f"{'const ' if s.const else ''}{s.type} {s.name}{size}{value};"
    if isinstance(s, Assign):
        return f"{s.target} {s.operator}= {expression(s.value)};"
    return " ".join(map(_simple, s.parts)) if isinstance(s, Together) else f"{s.text};"


def _compound(s: Compound | For | If, indent: str) -> Iterator[str]:
    head = _head(s)
    if isinstance(s.body, Assign | Expression):
        yield f"{indent}{head}{_simple(s.body)}"
        return
    yield f"{indent}{head}{{"
    for inner in s.body:
        yield from _lines(inner, indent + "  ")
    if isinstance(s, If) and s.otherwise:
        yield f"{indent}}} else {{"
        for inner in s.otherwise:
            yield from _lines(inner, indent + "  ")
    yield f"{indent}}}"


def _head(s: Compound | For | If) -> str:
    if isinstance(s, Compound):
        return ""
    if isinstance(s, If):
        return f"if ({s.condition}) "
    return f"for ({s.type} {s.counter} = 0; {s.counter} < {s.extent}; ++{s.counter}) "

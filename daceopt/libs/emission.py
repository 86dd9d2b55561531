"""Sizes, strides and strings of a graph as C++ text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import sympy

from daceopt.codegen import target
from daceopt.codegen.code_flow import size_text
from daceopt.codegen.frame import STREAM
from daceopt.errors import Unsupported
from daceopt.ir.scalar import expression_text, types
from daceopt.ir.scalar.dims import Dim
from daceopt.ir.scalar.types import DType

if TYPE_CHECKING:
    from daceopt.ir.graph.graph import Graph

_ELEMENTS = {"float32": "kFloat", "bfloat16": "kBfloat16", "uint8": "kUint8", "int8": "kInt8"}


def extent(value: Dim) -> str:
    """An integer expression over the graph's symbols as C++ of type int64_t; raises Unsupported for anything else."""
    expr = sympy.sympify(value)
    if expr.is_Integer:
        return f"int64_t({int(expr)})"
    if expr.is_Symbol:
        return f"int64_t({expr})"
    if isinstance(expr, (sympy.Add, sympy.Mul)) and all(not a.is_Rational or a.is_Integer for a in expr.args):
        sign = " + " if isinstance(expr, sympy.Add) else " * "
        return "(" + sign.join(extent(a) for a in expr.args) + ")"
    if isinstance(expr, sympy.Pow) and expr.exp.is_Integer and expr.exp > 0:
        return "(" + " * ".join([extent(expr.base)] * int(expr.exp)) + ")"
    if isinstance(expr, sympy.floor):
        top, bottom = sympy.fraction(sympy.together(expr.args[0]))
        return f"({extent(top)} / {extent(bottom)})"  # sizes are never negative
    if isinstance(expr, (sympy.Max, sympy.Min)):
        return _fold("max" if isinstance(expr, sympy.Max) else "min", [extent(a) for a in expr.args])
    raise Unsupported(f"size {expr}: expected sums, products, powers, floor, min or max of integers and size symbols")


def whole(value: Dim) -> str:
    """An integer expression over the graph's symbols as C++, also with quotients and remainders, for frames alone."""
    return size_text(sympy.sympify(value))


def _fold(function: str, terms: list[str]) -> str:
    text = terms[0]
    for term in terms[1:]:
        text = f"{function}({text}, {term})"
    return text


def braces(values: Iterable[Dim]) -> str:
    """``{a, b}``: a C++ initialiser list of integer expressions."""
    return "{" + ", ".join(extent(v) for v in values) + "}"


def stream(graph: Graph) -> str:
    """On what the kernels of the program run; null where the host runs them."""
    return STREAM if target.get(graph.options.target).has_stream else "nullptr"


def boolean(value: bool) -> str:
    """``true`` or ``false``."""
    return "true" if value else "false"


def number(value: float) -> str:
    """A C++ literal of type double."""
    if math.isnan(value):
        return '__builtin_nan("")'
    if math.isinf(value):
        return "__builtin_inf()" if value > 0 else "(-__builtin_inf())"
    return repr(float(value))


def element(dtype: DType) -> str:
    """The C++ name (``daceopt/element.h``) of an element type passed at run time: float32, bfloat16, uint8, int8."""
    return f"daceopt::Element::{_ELEMENTS[types.name_of(dtype)]}"


def hold(loops: Sequence[str]) -> tuple[str, str]:
    """(declaration, argument) of what keeps weights from iteration to iteration of ``loops``, as ``held_over`` has
    them."""
    return "static thread_local daceopt::HeldWeights held; ", f", held.in({first_iteration(loops)})"


def first_iteration(loops: Sequence[str]) -> str:
    """The condition that holds in the first iteration of all of them."""
    return " && ".join(f"{counter} == {start}" for counter, start in map(_first, loops)) or "true"


def _first(loop: str) -> tuple[str, str]:
    """A counter and its value in the first iteration."""
    counter, _, start = loop.partition(" from ")
    return counter, extent(expression_text.parse(start, sympy.Symbol)) if start else "0"


def literal(text: str) -> str:
    """A C++ string literal of ``text`` in UTF-8; every byte that is no letter, digit or blank is an octal escape."""
    plain = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789 _.:-")
    return '"' + "".join(chr(b) if b in plain else f"\\{b:03o}" for b in text.encode()) + '"'


def broadcast_strides(graph: Graph, name: str, shape: Sequence[Dim]) -> list[Dim]:
    """Strides with which ``name`` is read at every index of ``shape``, right-aligned: 0 where it broadcasts.

    Raises Unsupported when its shape does not broadcast to ``shape``.
    """
    own, strides = graph.shape(name), graph.strides(name)
    lead = len(shape) - len(own)
    if lead < 0 or any(n not in (1, m) for n, m in zip(own, shape[lead:], strict=True)):
        raise Unsupported(f"an array of shape {own} does not broadcast to {tuple(shape)}")
    return [0] * lead + [0 if n == 1 else stride for n, stride in zip(own, strides, strict=True)]

"""Conditions on sizes, read from the text as which they are kept beside a program: a text of the cache is no code."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

import sympy

from daceopt.torch_internals.symbol_functions import functions

_MOST_BITS = 4096  # of a power of numbers: a short text can say one that no memory holds


def _limit(power: Callable[[sympy.Expr, sympy.Expr], Any]) -> Callable[[sympy.Expr, sympy.Expr], Any]:
    def function(base: sympy.Expr, exponent: sympy.Expr) -> sympy.Expr:
        if base.is_number and exponent.is_number:
            bits = (abs(exponent) * sympy.log(abs(base) + 2, 2)).evalf(8)
            if not (bits.is_finite and bits <= _MOST_BITS):
                raise ArithmeticError("a power of numbers beyond all sizes")
        return power(base, exponent)

    return function


_OPERATORS: dict[type, Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: _limit(operator.pow),
    ast.BitAnd: sympy.And,
    ast.BitOr: sympy.Or,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Invert: sympy.Not,
    ast.Lt: sympy.Lt,
    ast.LtE: sympy.Le,
    ast.Gt: sympy.Gt,
    ast.GtE: sympy.Ge,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: getattr(sympy, name) for name in "Eq Ne And Or Not Max Min Abs floor ceiling".split()},
    **{
        name: _limit(f) if "Pow" in name or "Shift" in name else f
        for name, f in vars(functions).items()
        if isinstance(f, type) and issubclass(f, sympy.Basic)
    },
}


def read(text: str, symbols: Mapping[str, object]) -> sympy.Basic:
    """What SymPy has printed as ``text``, over these symbols. Raises ValueError for anything else."""
    try:
        return _read(ast.parse(text, mode="eval").body, symbols)
    except (SyntaxError, TypeError, ArithmeticError, RecursionError, MemoryError) as error:
        raise ValueError(f"expected a condition on sizes, found {text[:80]!r} ({type(error).__name__})") from None


def _read(node: ast.expr, symbols: Mapping[str, object]) -> sympy.Basic:
    if isinstance(node, ast.Constant) and type(node.value) in (bool, int, float):
        return sympy.sympify(node.value)
    if isinstance(node, ast.Name) and node.id in symbols:
        return symbols[node.id]
    function, operands = _take_apart(node)
    if function is None:
        raise ValueError(f"expected a condition on sizes, found {ast.unparse(node)[:80]!r}")
    return function(*(_read(operand, symbols) for operand in operands))


def _take_apart(node: ast.expr) -> tuple[Callable[..., Any] | None, list[ast.expr]]:
    """The operation and what it takes; None for what is none of a condition's."""
    if isinstance(node, ast.BinOp):
        return _OPERATORS.get(type(node.op)), [node.left, node.right]
    if isinstance(node, ast.UnaryOp):
        return _OPERATORS.get(type(node.op)), [node.operand]
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        return _OPERATORS.get(type(node.ops[0])), [node.left, node.comparators[0]]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
        return _FUNCTIONS.get(node.func.id), node.args
    return None, []

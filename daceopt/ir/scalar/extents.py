"""Dimension expressions: read as exporters write them (``2*s0 + 1``) without evaluating foreign text, and written
into scalar code."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from functools import reduce

import sympy

from daceopt.ir.scalar import scalar
from daceopt.ir.scalar.dims import Dim, dim

_MAX_LENGTH = 200
_MAX_EXPONENT = 8
_BINARY: dict[type, Callable[[Dim, Dim], Dim]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: lambda a, b: _floor_divide(a, b),
}


def parse(text: str, symbol: Callable[[str], sympy.Symbol]) -> Dim:
    """Integer arithmetic over names; anything else, however it is spelled, is one opaque symbol ``symbol(text)``."""
    if len(text) <= _MAX_LENGTH:
        try:
            return dim(_evaluate(ast.parse(text, mode="eval").body, symbol))
        except (SyntaxError, ValueError, ZeroDivisionError, RecursionError):
            pass
    return dim(symbol(text))


def _evaluate(node: ast.expr, symbol: Callable[[str], sympy.Symbol]) -> Dim:
    if isinstance(node, ast.Name):
        return symbol(node.id)
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        return _power(_evaluate(node.left, symbol), _evaluate(node.right, symbol))
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        return _BINARY[type(node.op)](_evaluate(node.left, symbol), _evaluate(node.right, symbol))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_evaluate(node.operand, symbol)
    raise ValueError(f"not a dimension expression: {ast.dump(node)[:80]}")


def _floor_divide(a: Dim, b: Dim) -> Dim:
    if b == 0:
        raise ValueError("division by zero")
    return sympy.floor(sympy.sympify(a) / b)


def _power(base: Dim, exponent: Dim) -> Dim:
    if not isinstance(exponent, int) or not 0 <= exponent <= _MAX_EXPONENT:
        raise ValueError(f"exponent {exponent}; expected an integer from 0 to {_MAX_EXPONENT}")
    return base**exponent


def in_scalar_code(expr: sympy.Expr) -> sympy.Expr:
    """``expr`` with the floors, ceilings, maxima and minima of sizes as the integer functions of scalar code."""
    expr = sympy.sympify(expr)
    if not expr.has(sympy.floor, sympy.ceiling, sympy.Max, sympy.Min):
        return expr
    args = [in_scalar_code(arg) for arg in expr.args]  # no ``replace``, by which SymPy compares extremes anew
    rule = next((rule for kind, rule in _INTEGER.items() if isinstance(expr, kind)), expr.func)
    return rule(*args)


def _quotient(fraction: sympy.Expr) -> sympy.Expr:
    above, below = sympy.fraction(sympy.together(fraction))
    return above if below == 1 else scalar.idiv(above - scalar.pymod(above, below), below)


def _fold(fn: Callable[..., sympy.Expr]) -> Callable[..., sympy.Expr]:
    return lambda *args: reduce(fn, args)


_INTEGER: dict[type, Callable[..., sympy.Expr]] = {
    sympy.floor: _quotient,
    sympy.ceiling: lambda fraction: -_quotient(-fraction),
    sympy.Max: _fold(scalar.maximum),
    sympy.Min: _fold(scalar.minimum),
}

"""Evaluates size expressions that stand as text in a program's records, without SymPy: a warm start may ask."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Any

_MAX_BITS = 1 << 18  # of a power


def _power(base: Any, exponent: Any) -> Any:
    bits = max(map(int.bit_length, Fraction(base).as_integer_ratio()))
    if exponent < 0 or (bits > 1 and exponent * bits > _MAX_BITS):
        raise ValueError(f"power {exponent} of a size; expected an exponent from 0 on, and at most {_MAX_BITS} bits")
    return base**exponent


_BINARY: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: lambda a, b: Fraction(a) / b,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: _power,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {  # SymPy's, and PyTorch's for what Python computes of whole numbers
    "Min": min,
    "Max": max,
    "Mod": operator.mod,
    "PythonMod": operator.mod,
    "FloorDiv": operator.floordiv,
    "Abs": abs,
    "floor": math.floor,
    "ceiling": math.ceil,
    "int_floor": operator.floordiv,
    "CleanDiv": operator.floordiv,
    **dict.fromkeys(("CeilDiv", "int_ceil"), lambda a, b: -(-a // b)),
    "IntTrueDiv": operator.truediv,
    "FloatTrueDiv": operator.truediv,
    "PowByNatural": _power,
    "FloatPow": lambda a, b: float(a) ** float(b),
    "ToFloat": float,
    "TruncToFloat": lambda a: float(math.trunc(a)),
    "TruncToInt": math.trunc,
    "FloorToInt": math.floor,
    "CeilToInt": math.ceil,
    "RoundToInt": round,
    "LShift": lambda a, b: a * _power(2, b),
    "RShift": operator.rshift,
    "Identity": lambda a: a,
    **{f"BitwiseFn_bitwise_{name}": getattr(operator, f"{name}_") for name in ("and", "or")},
    "BitwiseFn_bitwise_xor": operator.xor,
    **{f"OpaqueUnaryFn_{name}": getattr(math, name) for name in "sqrt exp log log2 sin cos tan".split()},
    **{f"OpaqueUnaryFn_{name}": getattr(math, name) for name in "sinh cosh tanh asin acos atan asinh acosh".split()},
}


def evaluate(text: str, sizes: Mapping[str, int]) -> int:
    """The value of arithmetic over names as SymPy prints it, with PyTorch's own functions.

    Raises KeyError for a name without a size, ValueError for anything but arithmetic.
    """
    try:
        return int(_parse(text)(sizes))
    except (SyntaxError, TypeError, ArithmeticError, RecursionError, MemoryError) as error:
        raise ValueError(f"expected arithmetic over sizes, found {text[:80]!r} ({type(error).__name__})") from None


_Value = Callable[[Mapping[str, int]], Any]


def names(text: str) -> set[str]:
    """The names in arithmetic as SymPy prints it, but those of functions."""
    tree = ast.parse(text, mode="eval")
    called = {node.func for node in ast.walk(tree) if isinstance(node, ast.Call)}
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and node not in called}


def check(text: str) -> None:
    """Raises ValueError for what is no such arithmetic."""
    _parse(text)


@lru_cache(4096)
def _parse(text: str) -> _Value:
    return _value(ast.parse(text, mode="eval").body)


def _value(node: ast.expr) -> _Value:
    """What computes an expression: the text is looked at once."""
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return lambda sizes, value=node.value: value  # type: ignore[misc]
    if isinstance(node, ast.Name):
        return operator.itemgetter(node.id)
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        return _apply(_BINARY[type(node.op)], node.left, node.right)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return _apply(operator.neg, node.operand)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS:
        return _apply(_FUNCTIONS[node.func.id], *node.args)
    raise ValueError(f"expected arithmetic over sizes, found {ast.unparse(node)[:80]!r}")


def _apply(function: Callable[..., Any], *operands: ast.expr) -> _Value:
    values = [_value(operand) for operand in operands]
    return lambda sizes: function(*[value(sizes) for value in values])

"""Arithmetic, rounding, trigonometry, selection and casts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import dace
import sympy

from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.operands import require
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.scalar import scalar, types
from daceopt.ir.scalar.types import DType
from daceopt.ops.core.registry import (
    ANY,
    FLOATS,
    NUMBERS,
    SIGNED,
    Names,
    Operator,
    elementwise,
    gradient,
    lowering,
    present,
    supports,
)

_FEW_TERMS = 8
_SMOOTH = {
    "Exp": sympy.exp,
    "Log": sympy.log,
    "Sqrt": sympy.sqrt,
    "Sin": sympy.sin,
    "Cos": sympy.cos,
    "Tan": sympy.tan,
    "Sinh": sympy.sinh,
    "Cosh": sympy.cosh,
    "Tanh": sympy.tanh,
    "Asin": sympy.asin,
    "Acos": sympy.acos,
    "Atan": sympy.atan,
    "Asinh": sympy.asinh,
    "Acosh": sympy.acosh,
    "Atanh": sympy.atanh,
    "Erf": sympy.erf,
    "Reciprocal": lambda x: 1 / x,
    "Floor": scalar.floor,
    "Ceil": scalar.ceil,
    "Round": scalar.round_even,
    "IsNaN": scalar.isnan,
}
for _name, _function in _SMOOTH.items():
    elementwise(_name, _function)

elementwise("Abs", sympy.Abs, types=NUMBERS)
elementwise("Neg", lambda x: -x, types=SIGNED)
elementwise("Sign", scalar.sign, types=NUMBERS)
elementwise("Add", lambda a, b: a + b, types=NUMBERS)
elementwise("Mul", lambda a, b: a * b, types=NUMBERS)
elementwise("Where", scalar.select, types=ANY)


def _distinct(b: Builder, names: Names) -> list[str]:
    """One array twice gets two names: SymPy would make ``x - x`` zero and ``x / x`` one, for NaN and infinity too."""
    first, second = present(names)
    return [first, b.reshape(second, b.graph.shape(second))] if first == second else [first, second]


@lowering("Sub", types=NUMBERS)
def subtract(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    b.elementwise(lambda x, y: x - y, *_distinct(b, inputs), out=outputs[0], label="sub")


@lowering("Div", types=NUMBERS)
def divide(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    """Integers truncate towards zero, as in C."""
    first, second = _distinct(b, inputs)
    is_float = types.is_float(b.graph.dtype(first))
    b.elementwise(_quotient if is_float else scalar.idiv, first, second, out=outputs[0], label="div")


def _quotient(x: sympy.Expr, y: sympy.Expr) -> sympy.Expr:
    """Rounded once: a product with the reciprocal of a number, as SymPy writes it, would make 49 / 49 less than 1."""
    return x / y if y.free_symbols or _is_power_of_two(y) else scalar.divide(x, y)


def _is_power_of_two(number: sympy.Expr) -> bool:
    return abs(math.frexp(float(number))[0]) == 0.5


@lowering("Mod", types=NUMBERS)
def modulo(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    """The sign of the divisor (``fmod=0``), or of the dividend (``fmod=1``)."""
    b.elementwise(
        scalar.fmod if node.attribute("fmod") else scalar.pymod, *_distinct(b, inputs), out=outputs[0], label="mod"
    )


@lowering("Pow", types=NUMBERS)
def power(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    """Computed in the wider of both types, then converted to the base's; of integers exactly."""
    base, exponent = present(inputs)
    whole = not any(types.is_float(b.graph.dtype(n)) for n in (base, exponent))

    def fn(x: sympy.Expr, y: sympy.Expr) -> sympy.Expr:
        return scalar.power(x, y) if whole and not (y.is_Integer and y > 0) else x ** _exact(y)

    b.elementwise(fn, base, exponent, out=outputs[0], label="pow")


def _exact(exponent: sympy.Expr) -> sympy.Expr:
    """Halves are written as fractions, for which there are square roots."""
    if exponent.is_Float and float(2 * exponent).is_integer():
        return sympy.Rational(int(2 * exponent), 2)
    return exponent


def _variadic(op_type: str, combine: Callable[..., sympy.Expr], accepted: Sequence[DType] = NUMBERS) -> None:
    elementwise(op_type, lambda *terms: reduce(combine, terms), types=accepted)


_variadic("Max", scalar.maximum)
_variadic("Min", scalar.minimum)
elementwise("Sum", lambda *terms: _sum(terms))
elementwise("Mean", lambda *terms: _sum(terms) / len(terms))


def _sum(terms: Sequence[sympy.Expr]) -> sympy.Expr:
    """In double where many terms would each be rounded into the whole, as a reduction over them would not."""
    return sum(terms) if len(terms) <= _FEW_TERMS else sum(scalar.cast(term, dace.float64) for term in terms)


@lowering("Identity", types=ANY)
def identity(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    alias(b, inputs[0], outputs[0])


@lowering("StopGradient", domain="daceopt")
def stop_gradient(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    """The identity, lowered after differentiation (see its rule): what capture writes for detach and no_grad."""
    alias(b, inputs[0], outputs[0])


@gradient("StopGradient", domain="daceopt")
def stop_gradient_rule(
    b: Builder, node: Operator, inputs: Names, outputs: Names, grads_out: Names, needs_grad: list[bool]
) -> Names:
    """No gradient passes."""
    return [None]


def alias(b: Builder, source: str | None, out: str | None) -> None:
    """``out`` becomes another name of ``source``."""
    assert source is not None and out is not None
    b.reshape(source, b.graph.shape(source), out=out)


@lowering("Cast", "CastLike", types=ANY)
def cast(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    """To the output's type, as C converts; a cast to the same type is no work at all.

    Floats of 8 bits saturate or, without ``saturate``, overflow to infinity or NaN.
    """
    source, out = require(inputs, 0), require(outputs, 0)
    dtype = b.graph.dtype(out)
    if b.graph.dtype(source) == dtype:
        return alias(b, source, out)
    mode = _rounding_mode(node, types.name_of(dtype))
    b.elementwise(lambda v: scalar.cast(v, dtype, mode), source, dtype=dtype, out=out, label="cast")
    return None


_POWERS = "float8_e8m0fnu"  # the type of powers of two, for which a rounding direction can be chosen
_DIRECTIONS = ("up", "down", "nearest")


def _rounding_mode(node: Operator, target: str) -> str:
    """The mode of :func:`scalar.cast`."""
    unbounded = target.startswith("float8") and not node.attribute("saturate", 1)
    direction = node.attribute("round_mode", "up") if target == _POWERS else ""
    return "_".join([direction] * bool(direction) + ["unbounded"] * unbounded)


@supports("Cast", "CastLike")
def why_not_cast(graph: Graph, node: Operator) -> str | None:
    mode = node.attribute("round_mode", "up")
    if types.name_of(graph.dtype(graph.result(node, 0))) == _POWERS and mode not in _DIRECTIONS:
        return f"round_mode {mode!r}; expected one of {', '.join(_DIRECTIONS)}"
    return None


@lowering("Clip", types=NUMBERS)
def clip(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    """Bounds are optional inputs or, before opset 11, attributes. The gradient at a bound is 1, as in PyTorch."""
    low, high = ([*inputs, None, None])[1:3]
    bounds = [n for n in (low, high) if n is not None]

    def fn(x: sympy.Expr, *bounds: sympy.Expr) -> sympy.Expr:
        values = iter(bounds)
        lo = next(values) if low is not None else _literal(node.attribute("min"))
        hi = next(values) if high is not None else _literal(node.attribute("max"))
        x = x if lo is None else scalar.select(scalar.lt(x, lo), lo, x)
        return x if hi is None else scalar.select(scalar.gt(x, hi), hi, x)

    b.elementwise(fn, inputs[0], *bounds, out=outputs[0], label="clip")  # type: ignore[arg-type]


def _literal(value: float | None) -> Any:
    return None if value is None else sympy.Float(value)


@lowering("IsInf", types=FLOATS)
def is_infinite(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    detect = {scalar.gt: node.attribute("detect_positive"), scalar.lt: node.attribute("detect_negative")}
    signs = [sign for sign, is_detected in detect.items() if is_detected]

    def fn(x: sympy.Expr) -> sympy.Expr:
        hit = reduce(scalar.logical_or, [sign(x, 0) for sign in signs], sympy.Integer(0))
        return scalar.logical_and(scalar.isinf(x), hit)

    b.elementwise(fn, inputs[0], out=outputs[0], label="isinf")  # type: ignore[arg-type]

"""Arithmetic that can be had with fewer or cheaper operators, to the last bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import frexp

import numpy as np

from daceopt.ir.graph.kinds import Node
from daceopt.ir.scalar import types
from daceopt.passes.pattern_matching import Pattern
from daceopt.passes.patterns import Match, Op, PatternRule, constant, either, op, scalar

_IDEMPOTENT = "Abs|Floor|Ceil|Round|Sign|Relu"
_LARGEST = 2.0**100  # of a power of two whose reciprocal is a normal number, too


@dataclass(frozen=True)
class _Rule(Pattern):
    """``pattern``, whose root is called "y", and what takes its place where ``when`` holds."""

    pattern: Op
    replacement: Op | str | Callable[[Match], Op]
    when: Callable[[Match], bool] = lambda m: True

    @property
    def size(self) -> int:  # type: ignore[override]
        return self.pattern.size

    def ends_in(self, node: Node) -> bool:
        return self.pattern.ends_in(node)

    def find(self, name: str | None, match: Match, where: str) -> Iterator[Match]:
        for m in self.pattern.named("y").find(name, match, where):
            if self.when(m):
                yield replace(m, bound={**m.bound, "rule": self})

    def make(self, m: Match) -> Op | str:
        return self.replacement(m) if callable(self.replacement) else self.replacement


def _is_power_of_two(value: float) -> bool:
    return abs(frexp(value)[0]) == 0.5 and 1 / _LARGEST <= abs(value) <= _LARGEST


def _is_zero(negative: bool) -> Callable[[np.ndarray], bool]:
    """Zeros of one sign; integers have both."""

    def accept(value: np.ndarray) -> bool:
        return not value.any() and (value.dtype.kind != "f" or bool((np.signbit(value) == negative).all()))

    return accept


def _has_shape_of_x(m: Match) -> bool:
    return m.shape("x") == m.shape("y")


def _is_float(m: Match) -> bool:
    dtype = m.graph.dtype(m["x"])
    return types.is_float(dtype) and not types.is_narrow(dtype)


def _is_repeated(m: Match) -> bool:
    return bool(m.node("y").op_type == m.node("inner").op_type)


def _over(*operands: str) -> Callable[[Match], Op]:
    """The root's own operator over other operands."""
    return lambda m: op(str(m.node("y").op_type), *operands)


_NEG_X, _NEG_Z = op("Neg", "x").shared(), op("Neg", "z").shared()
_DIVISOR = scalar("c", accept=_is_power_of_two, expected="a power of two")
# not what is near: these are other values, no spellings of a constant
_ONE, _TWO, _MINUS_ONE = (scalar(value=number, tolerance=0.0) for number in (1.0, 2.0, -1.0))
_RULES = (
    # cheaper
    _Rule(op("Div", "x", _DIVISOR), lambda m: op("Mul", "x", 1 / m["c"]), _is_float),
    _Rule(op("Pow", "x", _TWO), op("Mul", "x", "x"), _has_shape_of_x),
    _Rule(op("Mul", "x", _MINUS_ONE), op("Neg", "x"), lambda m: _is_float(m) and _has_shape_of_x(m)),
    # signs that meet
    _Rule(op("Neg", _NEG_X), "x"),
    _Rule(op("Abs", _NEG_X), op("Abs", "x")),
    _Rule(op("Mul|Div", _NEG_X, _NEG_Z), _over("x", "z"), _is_float),
    _Rule(op("Add", "x", _NEG_Z), op("Sub", "x", "z"), _is_float),
    _Rule(op("Sub", "x", _NEG_Z), op("Add", "x", "z"), _is_float),
    # nothing is added, raised or chosen
    _Rule(op("Add", "x", constant(accept=_is_zero(True))), "x", _has_shape_of_x),
    _Rule(op("Sub", "x", constant(accept=_is_zero(False))), "x", _has_shape_of_x),
    _Rule(op("Pow", "x", _ONE), "x", _has_shape_of_x),
    _Rule(op("Max|Min|And|Or", "x", "x"), "x"),
    _Rule(op("Where", "c", "x", "x"), "x", _has_shape_of_x),
    # what is so already
    _Rule(op("Not", op("Not", "x").shared()), "x"),
    _Rule(op("Where", op("Not", "c").shared(), "x", "z"), op("Where", "c", "z", "x")),
    _Rule(op(_IDEMPOTENT, op(_IDEMPOTENT, "x").named("inner").shared()), "inner", _is_repeated),
)


@dataclass(frozen=True)
class AlgebraicSimplification(PatternRule):
    """Cheaper arithmetic for the same values: roundings, infinities, NaN and signs of zero are as before.

    before:  a = x / 8;      b = Neg(Neg(a));  c = b + Neg(z);  y = Pow(c, 2)
    after:   a = x * 0.125;  c = a - z;        y = c * c

    Adding +0 (which makes +0 of -0), dividing by 3, the square of a root and factors that could overflow apart stay.
    """

    thing = "the arithmetic"
    pattern = either(*_RULES)

    def replace(self, m: Match) -> Op | str:
        replacement: Op | str = m["rule"].make(m)
        return replacement

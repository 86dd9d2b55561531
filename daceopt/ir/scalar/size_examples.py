"""Numbers for sizes: one example for which an expression is negative shows that it is not always 0 or more."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Any
from zlib import crc32

import numpy as np
import sympy

from daceopt.ir.scalar import types
from daceopt.ir.scalar.dims import Dim
from daceopt.ir.scalar.functions import CLASSES, absolute, idiv, maximum, minimum, pymod

Loops = Iterable[tuple[sympy.Symbol, Dim]]
"""Parameters of loops and their extents, the outermost first."""

_ALIKE = (0, 1, 2)
_APART = (0, 1, 3, 17, 400)  # sizes of which some are much larger than others
_APARTS = 4
_BELOW = (4, 10, 50, 1000)  # sizes that differ from one another
_ENDS = 3  # of a loop: its first iteration, its last one, and one between
COUNT = _ENDS * (len(_ALIKE) + _APARTS + len(_BELOW))
STEP = {False: _ENDS, True: 1}
"""From one example to the next: whether there are loops."""


class Example(dict[sympy.Symbol, int]):
    """Symbol -> its number, 0 or more; that of a size follows from its name and ``number``."""

    def __init__(self, number: int):
        super().__init__()
        self._number = number

    def __missing__(self, symbol: sympy.Symbol) -> int:
        self[symbol] = number = _size(symbol.name, self._number)
        return number


def example(number: int, facts: Iterable[sympy.Expr], loops: Loops) -> Example | None:
    """The example ``number``, below :data:`COUNT`: sizes, and an iteration of all ``loops``. None where there is none,
    or one of ``facts`` is negative."""
    which, end = divmod(number, _ENDS)
    numbers = Example(which)
    for p, extent in loops:
        count = value_of(extent, numbers, 0)
        if count < 1:
            return None
        numbers[p] = 0 if end == 0 else int(count) - 1 if end == 1 else _size(p.name, which) % int(count)
    return numbers if all(value_of(f, numbers, -1) >= 0 for f in facts) else None


@lru_cache(1 << 12)
def _size(name: str, number: int) -> int:
    if number < len(_ALIKE):
        return _ALIKE[number]
    drawn, number = crc32(f"{number}{name}".encode()), number - len(_ALIKE)
    return _APART[drawn % len(_APART)] if number < _APARTS else drawn % _BELOW[number - _APARTS]


def value_of(expr: sympy.Expr, example: Mapping[sympy.Symbol, int], default: Dim | None) -> Any:
    """The value of ``expr``, exactly, where ``example`` has that of its symbols; ``default`` where it has none, or is
    made of functions that are not known here."""
    try:
        return _value(sympy.sympify(expr), example)
    except (KeyError, ZeroDivisionError):
        return default


def _value(expr: sympy.Expr, example: Mapping[sympy.Symbol, int]) -> int | Fraction:
    if expr.is_Integer:
        return int(expr)
    if expr.is_Symbol:
        return example[expr]
    if expr.is_Rational:
        return Fraction(int(expr.p), int(expr.q))
    return _FUNCTIONS[expr.func](*(_value(a, example) for a in expr.args))


def _power(base: int | Fraction, exponent: int | Fraction) -> int | Fraction:
    if not isinstance(exponent, int) or abs(exponent) > 64:
        raise KeyError(exponent)
    return Fraction(base) ** exponent if exponent < 0 else base**exponent


def _quotient(a: int | Fraction, b: int | Fraction) -> int:
    """Rounded towards 0; by 0 it is 0, as in scalar code."""
    return 0 if b == 0 else int(Fraction(a, b))


def _cast(dtype: types.DType) -> Callable[[int | Fraction], int]:
    """Rounded towards 0, where the integer type ``dtype`` has the number."""
    limits = np.iinfo(types.to_numpy(dtype))

    def convert(x: int | Fraction) -> int:
        if not limits.min <= int(x) <= limits.max:
            raise KeyError(x)
        return int(x)

    return convert


_INTEGERS = [t for t in types.ALL if types.is_integer(t) and not types.is_narrow(t)]
_FUNCTIONS: dict[type, Callable[..., int | Fraction]] = {
    sympy.Add: lambda *terms: sum(terms),
    sympy.Mul: lambda *factors: math.prod(factors),
    sympy.Pow: _power,
    sympy.floor: math.floor,
    sympy.ceiling: math.ceil,
    sympy.Min: min,
    sympy.Max: max,
    sympy.Abs: abs,
    minimum: min,
    maximum: max,
    absolute: abs,
    idiv: _quotient,
    pymod: lambda a, b: 0 if b == 0 else a % b,
    **{CLASSES[f"cast_{types.name_of(t)}"]: _cast(t) for t in _INTEGERS},
}

"""Integer symbols and their kinds: what a symbol stands for is its class, and nothing reads it out of a name.

Symbols of two kinds are two symbols, even of one name; sums, substitution, pickling and copies keep the kind.
"""

from __future__ import annotations

from functools import cache

import dace
import sympy


class Parameter(dace.symbolic.symbol):
    """Counts the iterations of a loop of a kernel, from 0."""

    def __new__(cls, name: str, dtype: dace.typeclass = dace.int64, **assumptions: object) -> Parameter:
        plain = dtype == dace.int64 and not assumptions
        return _integer(cls, name) if plain else super().__new__(cls, name, dtype, **assumptions)


class Counter(dace.symbolic.symbol):
    """Counts the iterations of a loop around a body (``region.Repeat``), from 0."""

    def __new__(cls, name: str, dtype: dace.typeclass = dace.int64, **assumptions: object) -> Counter:
        plain = dtype == dace.int64 and not assumptions
        return _integer(cls, name) if plain else super().__new__(cls, name, dtype, **assumptions)


def size(name: str) -> dace.symbolic.symbol:
    """An extent that is known when running. Any symbol that is of no other kind is one, so users write DaCe's own."""
    return _integer(dace.symbolic.symbol, name)


_MADE: dict[tuple[type, str], dace.symbolic.symbol] = {}


def _integer(kind: type[dace.symbolic.symbol], name: str) -> dace.symbolic.symbol:
    """Symbols are values, made once: DaCe makes a table of its types for each one (0.3 ms)."""
    if (kind, name) not in _MADE:
        _MADE[kind, name] = dace.symbolic.symbol.__new__(kind, name, dace.int64)
    return _MADE[kind, name]


@cache
def param(k: int) -> Parameter:
    """The k-th canonical iteration parameter."""
    return Parameter(f"i{k}")


def is_parameter(symbol: sympy.Basic) -> bool:
    """Does the symbol count the iterations of a kernel's loop?"""
    return isinstance(symbol, Parameter)


def is_counter(symbol: sympy.Basic) -> bool:
    """Does the symbol count the iterations of a loop around a body?"""
    return isinstance(symbol, Counter)

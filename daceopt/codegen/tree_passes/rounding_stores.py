"""Values that are rounded only to be stored, which rounds them again.

before:  v1 = dop::bfloat16::round(v0 * v0); p1[i0] = dop::bfloat16::store(v1);
after:   v1 = v0 * v0; p1[i0] = dop::bfloat16::store(v1);

Compilers do not see that the second rounding changes nothing.
"""

from __future__ import annotations

from dataclasses import replace

import sympy

from daceopt.codegen.names import Names
from daceopt.ir.kernel.tasklet import Assignment
from daceopt.ir.scalar import functions, scalar, types

_HALVES = ("bfloat16", "float16")  # storing rounds a float to them as a cast does; of others, beyond their range not


def stored_value(
    value: sympy.Symbol,
    dtype: types.DType,
    code: list[Assignment],
    values: dict[sympy.Symbol, types.DType],
    names: Names,
) -> sympy.Symbol:
    """What ``value``, which ``code`` assigns, is rounded from, where storing it as ``dtype`` rounds that alike.

    ``code`` and ``values``, the types of symbols, may get a further symbol for it.
    """
    where = next((k for k, a in enumerate(code) if a.symbol == value), None)
    if where is None or types.name_of(dtype) not in _HALVES:
        return value
    rounded, wide = code[where], types.compute_type(dtype)
    if not isinstance(rounded.expr, functions.CLASSES[f"cast_{types.name_of(dtype)}"]):
        return value
    (source,) = rounded.expr.args
    if scalar.Types(values).strong(source, wide) != wide:
        return value
    if source.is_Symbol:
        return source
    symbol = names.value(wide)
    values[symbol] = wide
    code[where : where + 1] = [Assignment(symbol, source, wide), replace(rounded, expr=rounded.expr.func(symbol))]
    return symbol

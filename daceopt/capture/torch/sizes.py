"""Sizes as PyTorch knows them (``SymInt``) become extents of the graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

import dace
import sympy
import torch

from daceopt.errors import Unsupported
from daceopt.ir.scalar import scalar
from daceopt.ir.scalar.dims import Dim, dim
from daceopt.ir.scalar.symbols import size
from daceopt.torch_internals import symbol_functions


def _power(base: sympy.Expr, exponent: sympy.Expr) -> sympy.Expr:
    """As Python has it, of numbers: a product for a small whole exponent."""
    return sympy.Pow(base, exponent) if exponent.is_Integer and abs(exponent) <= 4 else scalar.power(base, exponent)


_FUNCTIONS: dict[str, Callable[..., sympy.Expr]] = {
    "Add": lambda *terms: sympy.Add(*terms),
    "Mul": lambda *factors: sympy.Mul(*factors),
    "Pow": _power,
    "FloatPow": _power,
    "PowByNatural": _power,
    "FloatTrueDiv": lambda a, b: a / b,
    "IntTrueDiv": lambda a, b: a / b,
    "FloorDiv": lambda a, b: scalar.floor(a / b),
    "Mod": scalar.pymod,
    "PythonMod": scalar.pymod,
    "Min": lambda *terms: reduce(scalar.minimum, terms),
    "Max": lambda *terms: reduce(scalar.maximum, terms),
    "Abs": scalar.absolute,
    "ToFloat": lambda a: a,
    "Identity": lambda a: a,
    "TruncToFloat": scalar.trunc,
    "TruncToInt": scalar.trunc,
    "FloorToInt": scalar.floor,
    "CeilToInt": scalar.ceil,
    "RoundToInt": scalar.round_even,
    "OpaqueUnaryFn_sqrt": lambda a: sympy.sqrt(a),
    "OpaqueUnaryFn_exp": sympy.exp,
    "OpaqueUnaryFn_log": sympy.log,
    "OpaqueUnaryFn_log2": scalar.log2,
    **{f"OpaqueUnaryFn_{name}": getattr(sympy, name) for name in "sin cos tan sinh cosh tanh asin acos atan".split()},
}
"""What PyTorch computes with numbers, by the name of its class, as scalar code of float64."""


_WHOLE: dict[Any, Callable[..., Any]] = {
    sympy.Add: lambda *terms: sympy.Add(*terms),
    sympy.Mul: lambda *factors: sympy.Mul(*factors),
    sympy.Pow: sympy.Pow,
    symbol_functions.functions.PowByNatural: sympy.Pow,
    **dict.fromkeys((sympy.Max, symbol_functions.functions.Max), lambda *terms: sympy.Max(*terms)),
    **dict.fromkeys((sympy.Min, symbol_functions.functions.Min), lambda *terms: sympy.Min(*terms)),
    sympy.Abs: lambda value: sympy.Max(value, -value),
    **dict.fromkeys(
        (symbol_functions.functions.FloorDiv, symbol_functions.functions.CleanDiv), lambda a, b: sympy.floor(a / b)
    ),
    **dict.fromkeys(
        (symbol_functions.functions.Mod, symbol_functions.functions.PythonMod), lambda a, b: a - b * sympy.floor(a / b)
    ),
    symbol_functions.functions.IntTrueDiv: lambda a, b: a / b,
    symbol_functions.functions.ToFloat: lambda value: value,
    symbol_functions.functions.FloorToInt: sympy.floor,
    symbol_functions.functions.CeilToInt: lambda quotient: -sympy.floor(-quotient),
    symbol_functions.functions.TruncToInt: lambda x: sympy.Max(sympy.floor(x), 0) - sympy.Max(sympy.floor(-x), 0),
}
"""What PyTorch computes with sizes, as extents."""

_GROWING = (sympy.Add, sympy.Mul, sympy.Pow, symbol_functions.functions.PowByNatural)


ROUNDED = frozenset("TruncToInt FloorToInt CeilToInt RoundToInt".split())
"""What makes a whole number of a float."""


_EXACT = ROUNDED | {"Add", "Mul", "Min", "Max", "Abs"}
"""Of whole numbers, what float64 computes as well: of a remainder it may leave nothing."""

_LARGE = 2**31
"""Constants with which sizes are computed are smaller, or Python's whole numbers would leave 64 bits."""


class SizeNames:
    """The size symbols of one graph: PyTorch's names for them, ours, and where each is read."""

    def __init__(self) -> None:
        self._known: dict[str, Any] = {}
        self.told: frozenset[str] = frozenset()
        """Of the sizes that only data decide, those that arguments of the call tell."""
        self.held: frozenset[str] = frozenset()
        """Symbols for what a tensor of the call holds, which are no sizes although they look the same."""

    def dim(self, value: object) -> Dim:
        """An extent for an int or a ``SymInt``. Raises Unsupported for what only data decides, or a float."""
        if isinstance(value, bool) or not isinstance(value, (int, torch.SymInt)):
            raise Unsupported(f"a size of type {type(value).__name__} ({value}); expected an integer")
        if isinstance(value, int):
            return value
        expr = value.node.expr
        return dim(self._convert(expr))

    def number(self, value: torch.SymFloat | torch.SymInt, floats: Mapping[str, object] | None = None) -> sympy.Expr:
        """The scalar expression, in float64, of a number that is computed from sizes and ``floats``, the scalar symbols
        of numbers that are arguments of the call, by PyTorch's names for them."""
        return self._real(value.node.expr, floats or {})

    def shape(self, sizes: Sequence[object]) -> tuple[Dim, ...]:
        """The extents of a tensor."""
        return tuple(self.dim(s) for s in sizes)

    def symbol(self, name: str) -> sympy.Symbol:
        """Our symbol for PyTorch's symbol ``name``."""
        if name not in self._known:
            self._known[name] = size(f"s{len(self._known)}")
        return self._known[name]

    def is_known(self, value: torch.SymInt | torch.SymFloat) -> bool:
        """Whether a number follows from sizes, and from integers among the arguments of the call."""
        return all(map(self._is_told, value.node.expr.free_symbols))

    def _is_told(self, symbol: sympy.Symbol) -> bool:
        is_size = symbol_functions.is_size(symbol) and str(symbol) not in self.held
        return is_size or str(symbol) in self.told

    def _real(self, expr: sympy.Expr, floats: Mapping[str, object]) -> sympy.Expr:
        if str(expr) in floats:
            return floats[str(expr)]
        if expr.is_number:
            return scalar.number(float(expr))
        if expr.is_integer and not any(str(s) in floats for s in expr.free_symbols):
            return scalar.cast(dim(self._convert(expr)), dace.float64)
        name = type(expr).__name__
        function = _FUNCTIONS.get(name)
        if function is None or (expr.is_integer and name not in _EXACT):
            raise Unsupported(f"a number computed as {expr}, a {type(expr).__name__}")
        return function(*(self._real(a, floats) for a in expr.args))

    def _convert(self, expr: sympy.Expr) -> sympy.Expr:
        if isinstance(expr, sympy.Symbol):
            if not self._is_told(expr):
                raise Unsupported(f"a size that only the data decides ({expr})")
            return self.symbol(expr.name)
        if isinstance(expr, sympy.Integer):
            return expr
        if isinstance(expr, sympy.Float) and float(expr).is_integer():
            return sympy.Integer(int(expr))
        function = _WHOLE.get(type(expr))
        if type(expr) in _GROWING and any(a.is_Integer and abs(a) > _LARGE for a in expr.args):
            raise Unsupported(f"a number that may need more than 64 bits ({expr})")
        if function is None:
            raise Unsupported(f"a size computed as {expr}, a {type(expr).__name__}")
        return function(*(self._convert(a) for a in expr.args))

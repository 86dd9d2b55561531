"""Sizes as PyTorch knows them (``SymInt``) become extents of the graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import dace
import sympy
import torch
from torch.utils._sympy import functions as torch_functions
from torch.utils._sympy.symbol import SymT, symbol_is_type

from daceopt.errors import Unsupported
from daceopt.ir import scalar
from daceopt.ir.graph import Dim, dim
from daceopt.ir.symbols import size


class Sizes:
    """The size symbols of one graph: PyTorch's names for them, ours, and where each is read."""

    def __init__(self) -> None:
        self._known: dict[str, Any] = {}

    def dim(self, value: Any) -> Dim:
        """An extent for an int or a ``SymInt``. Raises Unsupported for what only data decides, or a float."""
        if isinstance(value, bool) or not isinstance(value, (int, torch.SymInt)):
            raise Unsupported(f"a size of type {type(value).__name__} ({value}); expected an integer")
        if isinstance(value, int):
            return value
        expr = value.node.expr
        return dim(self._convert(expr))

    def number(self, value: torch.SymFloat, floats: Mapping[str, Any] | None = None) -> sympy.Expr:
        """The scalar expression, in float64, of a number that is computed from sizes and ``floats``, the scalar symbols
        of numbers that are arguments of the call, by PyTorch's names for them."""
        return self._real(value.node.expr, floats or {})

    def shape(self, sizes: Sequence[Any]) -> tuple[Dim, ...]:
        """The extents of a tensor."""
        return tuple(self.dim(s) for s in sizes)

    def symbol(self, name: str) -> Any:
        """Our symbol for PyTorch's symbol ``name``."""
        if name not in self._known:
            self._known[name] = size(f"s{len(self._known)}")
        return self._known[name]

    def _real(self, expr: Any, floats: Mapping[str, Any]) -> sympy.Expr:
        if str(expr) in floats:
            return floats[str(expr)]
        if expr.is_number:
            return sympy.Float(expr, 17)
        if expr.is_integer:
            return scalar.cast(dim(self._convert(expr)), dace.float64)
        if isinstance(expr, torch_functions.ToFloat):
            return self._real(expr.args[0], floats)
        if isinstance(expr, (torch_functions.FloatTrueDiv, torch_functions.IntTrueDiv)):
            return self._real(expr.args[0], floats) / self._real(expr.args[1], floats)
        if type(expr).__name__ == "OpaqueUnaryFn_sqrt":
            return sympy.sqrt(self._real(expr.args[0], floats))
        if isinstance(expr, (sympy.Pow, torch_functions.FloatPow)) and expr.args[1].is_number:
            return sympy.Pow(self._real(expr.args[0], floats), sympy.nsimplify(expr.args[1]))
        if isinstance(expr, (sympy.Add, sympy.Mul)):
            return expr.func(*(self._real(a, floats) for a in expr.args))
        raise Unsupported(f"a number computed from sizes as {expr}, a {type(expr).__name__}")

    def _convert(self, expr: Any) -> Any:
        if isinstance(expr, sympy.Symbol):
            if not symbol_is_type(expr, SymT.SIZE):
                raise Unsupported(f"a size that only the data decides ({expr})")
            return self.symbol(expr.name)
        if isinstance(expr, sympy.Integer):
            return expr
        args = [self._convert(a) for a in expr.args]
        if isinstance(expr, (torch_functions.FloorDiv, torch_functions.CleanDiv)):
            return sympy.floor(args[0] / args[1])
        if isinstance(expr, (torch_functions.Mod, torch_functions.PythonMod)):
            return args[0] - args[1] * sympy.floor(args[0] / args[1])
        if isinstance(expr, (sympy.Max, torch_functions.Max)):
            return sympy.Max(*args)
        if isinstance(expr, (sympy.Min, torch_functions.Min)):
            return sympy.Min(*args)
        if isinstance(expr, (sympy.Add, sympy.Mul)) or (isinstance(expr, sympy.Pow) and args[1].is_Integer):
            return expr.func(*args)
        raise Unsupported(f"a size computed as {expr}, a {type(expr).__name__}")

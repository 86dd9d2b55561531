"""The functions of SymPy of which PyTorch makes sizes, and what its symbols stand for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sympy

from daceopt.torch_internals.release import private_names

with private_names():
    from torch.utils._sympy import functions as functions
    from torch.utils._sympy.interp import sympy_interp
    from torch.utils._sympy.reference import PythonReferenceAnalysis
    from torch.utils._sympy.symbol import SymT, symbol_is_type
    from torch.utils._sympy.value_ranges import bound_sympy

    _FLOATS, _UNBACKED, _SIZE = (SymT.FLOAT, SymT.UNBACKED_FLOAT), SymT.UNBACKED_INT, SymT.SIZE


def is_float(symbol: sympy.Symbol) -> bool:
    """Whether a symbol is a number of type float, known from an argument or not."""
    return bool(symbol_is_type(symbol, _FLOATS))


def is_unbacked_integer(symbol: sympy.Symbol) -> bool:
    """Whether it is an integer that only data decide."""
    return bool(symbol_is_type(symbol, _UNBACKED))


def is_size(symbol: sympy.Symbol) -> bool:
    """Whether it is the size of an argument."""
    return bool(symbol_is_type(symbol, _SIZE))


def evaluate(expression: sympy.Expr, values: Mapping[sympy.Symbol, object]) -> Any:
    """An expression of numbers of Python or of symbols of another trace."""
    return sympy_interp(PythonReferenceAnalysis, values, expression)


def upper_bound(expression: sympy.Expr, ranges: Mapping[sympy.Symbol, object]) -> sympy.Expr:
    """The most that an expression of symbols of these ranges can be."""
    return bound_sympy(expression, ranges).upper

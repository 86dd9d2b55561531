"""Numbers of NumPy in programs of DaCe, whose printers of Python and of C++ write their ``repr``: that of NumPy 2 is
``np.int64(1)``, which is neither a number nor C++."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

import numpy as np
from dace.codegen.cppunparse import CPPUnparser
from dace.frontend.python.astutils import ExtUnparser


def install() -> None:
    """Let DaCe write them as numbers, as it does with NumPy 1."""
    for printer in (ExtUnparser, CPPUnparser):
        printer._Constant = _of_numbers(printer._Constant)


def _of_numbers(write: Callable[[Any, ast.Constant], None]) -> Callable[[Any, ast.Constant], None]:
    def write_constant(printer: object, node: ast.Constant) -> None:
        value: Any = node.value
        write(printer, ast.Constant(_number(value)) if isinstance(value, np.generic) else node)

    return write_constant


def _number(value: np.generic) -> bool | int | float | complex:
    """The number of Python with the same digits."""
    return float(str(value)) if isinstance(value, np.floating) else value.item()

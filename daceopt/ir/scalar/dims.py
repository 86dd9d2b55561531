"""Extents and strides: integers, or SymPy expressions over the sizes of a graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import sympy

Dim: TypeAlias = int | sympy.Expr
Shape = tuple[Dim, ...]

HINT = 1 << 10
"""What an open size counts as."""


def dim(value: Any) -> Dim:
    """An extent in its canonical form: ``int`` when it is a number, else a SymPy expression."""
    if isinstance(value, (int, np.integer)):
        return int(value)
    value = sympy.sympify(value)
    return int(value) if value.is_Integer else value


def row_major(shape: Sequence[Dim]) -> Shape:
    """Contiguous strides, in elements, of ``shape``. An extent of 0 counts as 1: strides of 0 would be broadcasts."""
    strides: list[Dim] = []
    step: Dim = 1
    for extent in reversed(shape):
        strides.append(step)
        step = dim(step * (1 if extent == 0 else extent))
    return tuple(reversed(strides))


def in_rows(shape: Sequence[Dim], strides: Sequence[Dim]) -> bool:
    """Row-major without gaps; the strides of extents of 1 do not matter, nor those of empty arrays."""
    return 0 in shape or all(n == 1 or s == t for n, s, t in zip(shape, strides, row_major(shape)))


def span(shape: Shape, strides: Shape) -> Dim:
    """Elements from the first to the last that (shape, strides) touches, at least 1 where the extents are known."""
    if 0 in shape:  # whatever the others are: the sum below would be less than nothing
        return 1
    return dim(1 + sum((s - 1) * t for s, t in zip(shape, strides)))


def is_dense(shape: Shape, strides: Shape) -> bool:
    """Are there no gaps between the elements, in whatever order they are?"""
    longer = [(n, s) for n, s in zip(shape, strides, strict=True) if n != 1]
    if not all(isinstance(s, int) for _, s in longer):
        return False
    longer.sort(key=lambda pair: -pair[1])
    return tuple(s for _, s in longer) == row_major([n for n, _ in longer])


def hint(size: Dim, sizes: Mapping[str, int] | None = None) -> int:
    """The number that a size counts as where a choice needs one and no proof: an open size as :data:`HINT`, unless
    ``sizes`` has its value by its name."""
    return size if isinstance(size, int) else int(with_hints(size, sizes))


def with_hints(expr: sympy.Expr, sizes: Mapping[str, int] | None = None) -> sympy.Expr:
    """``expr`` with numbers in the place of sizes, as :func:`hint` has them."""
    hints = sizes or {}
    return sympy.sympify(expr).xreplace({s: sympy.Integer(hints.get(str(s), HINT)) for s in expr.free_symbols})

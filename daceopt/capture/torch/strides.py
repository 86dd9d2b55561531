"""The order in which the axes of a traced tensor are in memory, and the strides that follow from it or do not."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from typing import Any

import sympy
import torch

from daceopt.runtime.strides import in_order, row_major


def dense_order(value: torch.Tensor) -> tuple[int, ...] | None:
    """The axes of a dense tensor from the outermost in memory; None for one with gaps or overlaps."""
    shape, strides = list(value.shape), list(value.stride())
    axes = range(len(shape))
    if value.is_contiguous():
        return tuple(axes)
    if any(not isinstance(s, int) for s in (*shape, *strides)):
        return _symbolic_order(value)
    order = sorted((k for k in axes if shape[k] != 1), key=lambda k: -strides[k])
    step = 1
    for k in reversed(order):
        if strides[k] != step:
            return None
        step *= shape[k]
    ones = [k for k in axes if shape[k] == 1]
    return (*ones, *order)


def _symbolic_order(value: torch.Tensor) -> tuple[int, ...] | None:
    """The same where sizes are symbols: channels last, or one of the permutations that transposing makes."""
    if value.dim() > 5:
        return None
    for order in permutations(range(value.dim())):
        if value.permute(order).is_contiguous():
            return order
    return None


def layout(value: torch.Tensor, order: Sequence[int]) -> tuple[Any, ...]:
    """The strides of a dense tensor as ``Output.layout`` has them; () where they follow from ``order``, as those along
    axes of one element, or of no elements, need not.
    """
    shape, strides = tuple(value.shape), tuple(value.stride())
    if all(isinstance(s, int) for s in (*shape, *strides)):
        return () if strides == in_order(row_major([shape[k] for k in order]), order) else strides
    inner = {k: tuple(order[at + 1 :]) for at, k in enumerate(order)}
    order_of = [inner[k] if n != 1 else _of_one(strides[k], order, shape, inner[k]) for k, n in _numbered_axes(shape)]
    return () if order_of == [inner[k] for k in range(len(order))] else tuple(order_of)


def _numbered_axes(shape: Sequence[int | torch.SymInt]) -> list[tuple[int, int]]:
    """Axes with their extents, 0 for symbols, of which no question is asked: that would be a guard."""
    return [(k, n if isinstance(n, int) else 0) for k, n in enumerate(shape)]


def _of_one(
    stride: int | torch.SymInt, order: Sequence[int], shape: Sequence[int | torch.SymInt], otherwise: tuple[int, ...]
) -> int | tuple[int, ...]:
    """The stride along an axis of one element, which is a product of extents inside of some axis in memory."""
    expression = _expression(stride)
    if sympy.expand(expression - sympy.Mul(*(_expression(shape[k]) for k in otherwise))) == 0:
        return otherwise
    for first in range(len(order), -1, -1):
        product = sympy.Mul(*(_expression(shape[k]) for k in order[first:]))
        if sympy.expand(expression - product) == 0:
            return tuple(order[first:])
    return int(expression) if expression.is_Integer else otherwise


def _expression(size: object) -> sympy.Expr:
    return size.node.expr if isinstance(size, torch.SymInt) else sympy.Integer(size)

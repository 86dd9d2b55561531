"""How the results of a program stand in tensors: a program writes arrays in rows, PyTorch promises axes in an order.

A result is made with the strides that it has in PyTorch, so it is a tensor of its own and no view of one in rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch


@dataclass(frozen=True)
class ResultForm:
    """``order``: the axes from the outermost in memory (None: as they are counted). ``strides``: per axis a number, or
    the axes whose extents multiply to it; (): those that follow from the order. A complex result is an array of both
    parts along one more axis.
    """

    order: tuple[int, ...] | None = None
    strides: tuple[Any, ...] = ()
    is_complex: bool = False

    def of(
        self, shape: tuple[int, ...], dtype: torch.dtype
    ) -> tuple[tuple[int, ...], torch.dtype, tuple[int, ...] | None]:
        """Shape, type and strides of the tensor for an array of ``shape``; None: strides of rows."""
        if self.is_complex:
            shape, dtype = shape[:-1], dtype.to_complex()
        order = None if self.order == tuple(sorted(self.order or ())) else self.order
        logical = shape if order is None else in_order(shape, order)
        if self.strides:
            return logical, dtype, tuple(_stride(s, logical) for s in self.strides)
        return logical, dtype, None if order is None else in_order(row_major(shape), order)


def _stride(stride: Any, shape: Sequence[int]) -> int:
    return stride if isinstance(stride, int) else prod(max(shape[k], 1) for k in stride)


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides that PyTorch gives a contiguous tensor."""
    steps = [1]
    for extent in reversed(shape[1:]):
        steps.append(steps[-1] * max(extent, 1))
    return tuple(reversed(steps)) if shape else ()


def in_order(values: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    """By axis, what is given for the axes in ``order``."""
    by_axis = dict(zip(order, values, strict=True))
    return tuple(by_axis[k] for k in range(len(by_axis)))

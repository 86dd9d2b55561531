"""The order in which the axes of a traced tensor stand in memory."""

from __future__ import annotations

from itertools import permutations

import torch


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

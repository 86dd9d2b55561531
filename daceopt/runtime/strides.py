"""Strides of tensors whose elements are in rows, and values by axis."""

from __future__ import annotations

from collections.abc import Sequence


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

"""Axes for what an ``as_strided`` reads: windows overlap along an axis of their own, instead of places in memory."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple


class MemoryAxis(NamedTuple):
    """An axis of ``extent``, read at ``start`` plus the sum of positions times ``factors``, one for each axis read."""

    extent: int
    start: int
    factors: tuple[int, ...]

    def highest(self, size: Sequence[int]) -> int:
        """The last place that is read."""
        return self.start + sum((n - 1) * f for n, f in zip(size, self.factors))


def memory_axes(size: Sequence[int], stride: Sequence[int], offset: int, elements: int) -> list[MemoryAxis]:
    """As many row-major axes of ``elements`` contiguous elements as there can be, if places in each are to stay inside.

    Each axis begins as one of the strides; where places of two go beyond its extent, it and the one around it are one.
    The elements read must be among ``elements``.
    """
    steps = _divisors(stride, size, elements)
    while True:
        axes = _axes(steps, stride, offset, elements)
        beyond = next((k for k, axis in enumerate(axes) if axis.highest(size) >= axis.extent), None)
        if not beyond:  # none, or the outermost, which nothing goes beyond
            return axes
        del steps[beyond - 1]


def _divisors(stride: Sequence[int], size: Sequence[int], elements: int) -> list[int]:
    """Strides of which each is a multiple of the next one, the last 1."""
    steps = [1]
    for step in sorted({s for s, n in zip(stride, size) if n > 1}):
        if step > steps[0] and step % steps[0] == 0 and elements % step == 0:
            steps.insert(0, step)
    return steps


def _axes(steps: Sequence[int], stride: Sequence[int], offset: int, elements: int) -> list[MemoryAxis]:
    extents = [around // step for around, step in pairwise((elements, *steps))]
    homes = [next((k for k, step in enumerate(steps) if s % step == 0), 0) for s in stride]
    axes = []
    for k, (extent, step) in enumerate(zip(extents, steps)):
        start, offset = divmod(offset, step)
        axes.append(MemoryAxis(extent, start, tuple(s // step if h == k else 0 for s, h in zip(stride, homes))))
    return axes

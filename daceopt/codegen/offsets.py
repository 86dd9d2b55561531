"""Places in one arena for blocks of known sizes, each of which is needed for a part of the time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np


class Span(NamedTuple):
    """``bytes`` that are needed from the position ``first`` to ``last``, both included."""

    bytes: int
    first: int
    last: int


_ORDERS: tuple[Callable[[Span], tuple[int, ...]], ...] = (
    lambda s: (-s.bytes, s.first - s.last),
    lambda s: (s.first - s.last, -s.bytes),
    lambda s: (s.first, -s.bytes),
    lambda s: (-s.last, -s.bytes),
)
"""Who chooses first: the large, the lasting, the early, the late."""


def offsets(spans: Sequence[Span]) -> tuple[list[int], int]:
    """An offset for each span, and the bytes of them all: spans that are needed together do not overlap.

    Each takes the smallest gap that holds it, between those that are placed already and needed at the same time.
    Pisarchyk and Lee, Efficient memory management for deep neural net inference (2020), section 5.2: greedy by size for
    offset calculation; the best of several orders.
    """
    least, best = alive_at_once(spans), None
    for order in _ORDERS:
        keys = [order(span) for span in spans]
        plan = _placed(spans, sorted(range(len(spans)), key=keys.__getitem__))
        best = plan if best is None or plan[1] < best[1] else best
        if best[1] == least:
            break
    assert best is not None
    return best


def alive_at_once(spans: Sequence[Span]) -> int:
    """The bytes that are needed at one position, at most: no plan takes less."""
    changes = np.zeros(max((s.last for s in spans), default=0) + 2, np.int64)
    for span in spans:
        changes[span.first] += span.bytes
        changes[span.last + 1] -= span.bytes
    return int(changes.cumsum().max())


def _placed(spans: Sequence[Span], order: Sequence[int]) -> tuple[list[int], int]:
    count = len(spans)
    first, last, start, end = (np.zeros(count, np.int64) for _ in range(4))
    result = [0] * count
    for done, k in enumerate(order):
        span = spans[k]
        together = np.flatnonzero((first[:done] <= span.last) & (last[:done] >= span.first))
        together = together[np.argsort(start[together], kind="stable")]
        result[k] = _gap(start[together], end[together], span.bytes)
        first[done], last[done], start[done], end[done] = span.first, span.last, result[k], result[k] + span.bytes
    return result, int(end.max(initial=0))


def _gap(starts: np.ndarray, ends: np.ndarray, size: int) -> int:
    """Where ``size`` bytes fit between what begins at ``starts``, in order, and ends at ``ends``: the smallest gap, or
    behind all."""
    if not len(starts):
        return 0
    reach = np.concatenate(([0], np.maximum.accumulate(ends)))
    room = starts - reach[:-1]
    fitting = np.flatnonzero(room >= size)
    return int(reach[fitting[np.argmin(room[fitting])]] if len(fitting) else reach[-1])

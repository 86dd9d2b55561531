"""Places for blocks of known sizes, each of which is needed for a part of the time: in one arena, and in memory that
others own and do not need yet, or any more."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
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


class Room(NamedTuple):
    """``bytes`` that belong to somebody else, and lie idle while no ``occupants``, each at its place, need them."""

    bytes: int
    occupants: tuple[tuple[Span, int], ...]


class Spot(NamedTuple):
    """``offset`` in the arena, or in the room of that number."""

    offset: int
    room: int | None = None


def offsets(spans: Sequence[Span], rooms: Sequence[Room] = ()) -> tuple[list[Spot], int]:
    """A place for each span, and the bytes of the arena: spans that are needed together do not overlap, nor any that
    are lent a place in ``rooms`` with occupants.

    Each takes the smallest gap that holds it, between those that are placed already and needed at the same time: in the
    arena, then in a room; then the arena grows. Pisarchyk and Lee, Efficient memory management for deep neural net
    inference (2020), section 5.2: greedy by size for offset calculation; the best of several orders.
    """
    space = _Space(rooms)
    least, best = least_bytes(spans, rooms), None
    for order in _ORDERS:
        keys = [order(span) for span in spans]
        plan = space.assign(spans, sorted(range(len(spans)), key=keys.__getitem__))
        best = plan if best is None or plan[1] < best[1] else best
        if best[1] == least:
            break
    assert best is not None
    return [space.place(start) for start in best[0]], best[1]


def _alive(spans: Iterable[Span], last: int) -> np.ndarray:
    """The bytes that are needed at each position up to ``last``."""
    changes = np.zeros(last + 2, np.int64)
    for span in spans:
        if span.first <= last:
            changes[max(span.first, 0)] += span.bytes
            changes[min(span.last, last) + 1] -= span.bytes
    return changes.cumsum()


def least_bytes(spans: Sequence[Span], rooms: Sequence[Room] = ()) -> int:
    """No arena is smaller: what is alive at one position and not in a room."""
    last = max((s.last for s in spans), default=0)
    idle = sum(r.bytes for r in rooms) - _alive((span for r in rooms for span, _ in r.occupants), last)
    return max(int((_alive(spans, last) - idle).max()), 0)


_WALL = 64  # bytes between rooms in the space of all addresses, so that nothing reaches from one into the next


class _Space:
    """All rooms one behind the other, then the arena, in one space of addresses."""

    def __init__(self, rooms: Sequence[Room]):
        self._starts = list(accumulate((r.bytes + _WALL for r in rooms), initial=0))
        self.floor = self._starts[-1]
        always = Span(_WALL, -1, np.iinfo(np.int64).max - 1)
        fixed = [(always, start - _WALL) for start in self._starts[1:]]
        fixed += [(s, start + at) for r, start in zip(rooms, self._starts, strict=False) for s, at in r.occupants]
        rows = [(s.first, s.last, at, at + s.bytes) for s, at in fixed]
        self._fixed = np.array(rows, np.int64).reshape(-1, 4).T

    def place(self, start: int) -> Spot:
        """Of an address, which place it is."""
        if start >= self.floor:
            return Spot(start - self.floor)
        room = bisect_right(self._starts, start) - 1
        return Spot(start - self._starts[room], room)

    def assign(self, spans: Sequence[Span], order: Sequence[int]) -> tuple[list[int], int]:
        """The address of each span, and how far the arena reaches."""
        count = self._fixed.shape[1]
        rows = np.zeros((4, count + len(spans)), np.int64)
        rows[:, :count] = self._fixed
        first, last, start, end = rows
        result, reached = [0] * len(spans), self.floor
        for placed, k in enumerate(order, count):
            span = spans[k]
            together = np.flatnonzero((first[:placed] <= span.last) & (last[:placed] >= span.first))
            together = together[np.argsort(start[together], kind="stable")]
            result[k] = self._gap(start[together], end[together], span.bytes, reached)
            reached = max(reached, result[k] + span.bytes)
            rows[:, placed] = span.first, span.last, result[k], result[k] + span.bytes
        return result, reached - self.floor

    def _gap(self, starts: np.ndarray, ends: np.ndarray, size: int, reached: int) -> int:
        """Where ``size`` bytes fit between what begins at ``starts``, in order, and ends at ``ends``: the smallest gap
        of the arena, which reaches to ``reached``, the smallest of a room, or behind all."""
        if not len(starts):
            return 0
        reach = np.concatenate(([0], np.maximum.accumulate(ends)))
        gaps = starts - reach[:-1]
        fitting = np.flatnonzero(gaps >= size)
        inside = fitting[reach[fitting] >= self.floor]
        if not len(inside) and (not len(fitting) or reach[-1] + size <= reached):
            return int(reach[-1])
        chosen = inside if len(inside) else fitting
        return int(reach[chosen[np.argmin(gaps[chosen])]])

"""Space in buffers: reused as soon as its tensor is dead, and what does not fit is spilled one level down."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

LONGEST, LARGEST = "longest", "largest"
SPILLS = (LONGEST, LARGEST)
"""Which of the tensors that are alive is spilled: the one that lives longest (section 4.3), or the largest."""


@dataclass(frozen=True)
class Lifetime:
    """An array that wants ``size`` bytes of a buffer while tasks ``first`` to ``last`` run."""

    name: str
    size: int
    first: int
    last: int

    @property
    def span(self) -> int:
        """How many tasks it lives across."""
        return self.last - self.first + 1

    @property
    def earlier(self) -> Lifetime:
        """From the task before on."""
        return replace(self, first=max(self.first - 1, 0))


@dataclass(frozen=True)
class Allocation:
    """``offsets``: where each tensor is; ``spilled``: those that found no place; ``early``: those whose place is
    free from the task before the one that they are born in."""

    offsets: dict[str, int]
    spilled: tuple[str, ...]
    early: frozenset[str] = frozenset()


def allocate(tensors: Iterable[Lifetime], capacity: int, spill: str = LONGEST, early: bool = False) -> Allocation:
    """Which tensors stay in a buffer of ``capacity`` bytes, and where.

    In the order in which they are born: while those alive are too many bytes, the one that lives across most tasks
    (with ``spill="largest"`` the largest, as Pisarchyk and Lee, 2020, have it) leaves the buffer for good. The others
    are placed the largest first, each at the lowest place that is free throughout its life; what finds none for gaps
    between others leaves, too. With ``early``, tensors get their places a task earlier as far as there is room when all
    have one, so that nothing leaves for it.
    """
    by_birth = sorted(tensors, key=lambda t: t.first)
    resident, spilled = _keep(by_birth, capacity, spill)
    offsets, soon = _place(resident, capacity, frozenset())
    if early:
        reserved, before = _place(resident, capacity, _with_room(resident, capacity))
        if reserved.keys() >= offsets.keys():
            offsets, soon = reserved, before
    spilled += [t.name for t in resident if t.name not in offsets]
    return Allocation(offsets, tuple(spilled), soon)


def _with_room(resident: Sequence[Lifetime], capacity: int) -> frozenset[str]:
    """Those that fit beside all others a task before they are born, by bytes, one after the other."""
    room = np.full(1 + max((t.last for t in resident), default=0), capacity, np.int64)
    for tensor in resident:
        room[tensor.first : tensor.last + 1] -= tensor.size
    fitting = set()
    for tensor in resident:
        before = tensor.earlier.first
        if before == tensor.first or tensor.size <= room[before]:
            fitting.add(tensor.name)
            room[before : tensor.first] -= tensor.size
    return frozenset(fitting)


def _keep(tensors: Sequence[Lifetime], capacity: int, spill: str) -> tuple[list[Lifetime], list[str]]:
    """Those of which never more are alive than fit, and the names of the others."""
    alive: dict[str, Lifetime] = {}
    out: dict[str, None] = {}
    for tensor in tensors:
        if tensor.size > capacity:
            out[tensor.name] = None
            continue
        alive = {n: t for n, t in alive.items() if t.last >= tensor.first} | {tensor.name: tensor}
        while sum(t.size for t in alive.values()) > capacity:
            victim = max(alive.values(), key=lambda t: (t.span, t.size) if spill == LONGEST else (t.size, t.span))
            out[victim.name] = None
            del alive[victim.name]
    return [t for t in tensors if t.name not in out], list(out)


def _place(resident: Sequence[Lifetime], capacity: int, soon: frozenset[str]) -> tuple[dict[str, int], frozenset[str]]:
    """Offsets, none for what does not fit between the others; and which of ``soon`` have their place a task earlier."""
    offsets: dict[str, int] = {}
    early = set()
    spans = np.zeros((4, len(resident)), np.int64)  # first and last task, beginning and end in the buffer
    for tensor in sorted(resident, key=lambda t: (-t.size, t.first)):
        for life in (tensor.earlier, tensor) if tensor.name in soon else (tensor,):
            offset = _lowest(spans[:, : len(offsets)], life)
            if offset + life.size <= capacity:
                spans[:, len(offsets)] = life.first, life.last, offset, offset + life.size
                offsets[life.name] = offset
                early |= {life.name} if tensor.name in soon and life.first == tensor.earlier.first else set()
                break
    return offsets, frozenset(early)


def _lowest(spans: np.ndarray, life: Lifetime) -> int:
    """The lowest place that is free throughout a life."""
    first, last, start, end = spans
    beside = np.flatnonzero((first <= life.last) & (last >= life.first))
    offset = 0
    for k in beside[np.argsort(start[beside])]:
        if start[k] - offset >= life.size:
            break
        offset = max(offset, int(end[k]))
    return offset

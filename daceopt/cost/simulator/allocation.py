"""Space in buffers: reused as soon as its tensor is dead, and what does not fit is spilled one level down."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True)
class Allocation:
    """``offsets``: where each tensor stands; ``spilled``: those that found no place."""

    offsets: dict[str, int]
    spilled: tuple[str, ...]


def allocate(tensors: Iterable[Lifetime], capacity: int, spill: str = LONGEST) -> Allocation:
    """Which tensors stay in a buffer of ``capacity`` bytes, and where.

    In the order in which they are born: while those alive are too many bytes, the one that lives across most tasks
    (with ``spill="largest"`` the largest, as Pisarchyk and Lee, 2020, have it) leaves the buffer for good. The others
    are placed the largest first, each at the lowest place that is free throughout its life; what finds none for gaps
    between others leaves, too.
    """
    wanted = sorted(tensors, key=lambda t: t.first)
    kept, spilled = _kept(wanted, capacity, spill)
    offsets = _placed(kept, capacity)
    spilled += [t.name for t in kept if t.name not in offsets]
    return Allocation(offsets, tuple(spilled))


def _kept(wanted: Sequence[Lifetime], capacity: int, spill: str) -> tuple[list[Lifetime], list[str]]:
    """Those of which never more are alive than fit, and the names of the others."""
    alive: dict[str, Lifetime] = {}
    out: dict[str, None] = {}
    for tensor in wanted:
        if tensor.size > capacity:
            out[tensor.name] = None
            continue
        alive = {n: t for n, t in alive.items() if t.last >= tensor.first} | {tensor.name: tensor}
        while sum(t.size for t in alive.values()) > capacity:
            victim = max(alive.values(), key=lambda t: (t.span, t.size) if spill == LONGEST else (t.size, t.span))
            out[victim.name] = None
            del alive[victim.name]
    return [t for t in wanted if t.name not in out], list(out)


def _placed(kept: Sequence[Lifetime], capacity: int) -> dict[str, int]:
    """Offsets; none for what does not fit between the others."""
    found: dict[str, int] = {}
    spans = np.zeros((4, len(kept)), np.int64)  # first and last task, beginning and end in the buffer
    for tensor in sorted(kept, key=lambda t: (-t.size, t.first)):
        first, last, start, end = spans[:, : len(found)]
        beside = np.flatnonzero((first <= tensor.last) & (last >= tensor.first))
        offset = 0
        for k in beside[np.argsort(start[beside])]:
            if start[k] - offset >= tensor.size:
                break
            offset = max(offset, int(end[k]))
        if offset + tensor.size <= capacity:
            spans[:, len(found)] = tensor.first, tensor.last, offset, offset + tensor.size
            found[tensor.name] = offset
    return found

"""Space in buffers: reused as soon as its tensor is dead, and what does not fit is spilled one level down."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

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
    """``offsets``: where each tensor stands; ``spilled``: those that found no place, in the order of their spilling."""

    offsets: dict[str, int]
    spilled: tuple[str, ...]


def allocate(tensors: Iterable[Lifetime], capacity: int, spill: str = LONGEST) -> Allocation:
    """Place tensors in the order in which they are born, each into the smallest gap that holds it.

    Where none does, of those alive the tensor that lives across most tasks (with ``spill="largest"`` the largest, as
    Pisarchyk and Lee, 2020, have it) leaves the buffer for its whole life, until there is a gap;
    what no buffer of that capacity could hold leaves at once.
    """
    worst: Callable[[Lifetime], tuple[int, int]] = (
        (lambda t: (t.span, t.size)) if spill == LONGEST else (lambda t: (t.size, t.span))
    )
    alive: list[tuple[int, Lifetime]] = []  # (offset, tensor) by offset
    offsets: dict[str, int] = {}
    spilled: list[str] = []
    for tensor in sorted(tensors, key=lambda t: t.first):
        alive = [(at, t) for at, t in alive if t.last >= tensor.first]
        while (offset := _gap(alive, tensor.size, capacity)) is None:
            victim = tensor if tensor.size > capacity else max((t for _, t in [*alive, (0, tensor)]), key=worst)
            spilled.append(victim.name)
            if victim is tensor:
                break
            offsets.pop(victim.name)
            alive = [(at, t) for at, t in alive if t is not victim]
        if offset is not None:
            offsets[tensor.name] = offset
            alive.insert(bisect_right([at for at, _ in alive], offset), (offset, tensor))
    return Allocation(offsets, tuple(spilled))


def _gap(alive: Sequence[tuple[int, Lifetime]], size: int, capacity: int) -> int | None:
    """The beginning of the smallest free range of ``size`` bytes; None where there is none."""
    best: tuple[int, int] | None = None
    end = 0
    for start in [*((at, at + t.size) for at, t in alive), (capacity, capacity)]:
        room = start[0] - end
        if room >= size and (best is None or room < best[0]):
            best = room, end
        end = max(end, start[1])
    return None if best is None else best[1]

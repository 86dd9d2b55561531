"""What to store and what to compute again, as numbers: bytes, seconds, and who reads what when. No graph is needed."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate


@dataclass(frozen=True)
class ForwardValue:
    """A forward array: ``bytes`` in memory if it is stored; ``forward`` and ``again``: while it is alive in the
    forward, and in the backward if it is computed again, 0 where its writer fuses into all that read it there.
    ``makers``: the computations that write it (it, or parts of it), none if it is given. ``writing``: seconds that
    storing it costs.
    """

    name: str
    bytes: int
    forward: int
    again: int
    makers: tuple[int, ...] = ()
    writing: float = 0.0


@dataclass(frozen=True)
class Computation:
    """A node of the forward, in seconds; ``in_place``: it may write where what it reads for the last time is."""

    reads: tuple[int, ...]
    writes: tuple[int, ...]
    seconds: float
    in_place: bool = False


@dataclass(frozen=True)
class GradientNode:
    """A node of the backward: the values it reads, the bytes of gradients alive ``before`` it and while it runs."""

    reads: tuple[int, ...]
    live: int
    before: int
    in_place: bool = False


@dataclass(frozen=True)
class StorageOutcome:
    """What a choice comes to: seconds more than a backward for which all was there; the bytes alive at once, at most;
    the values that are read from memory, and the computations that run again, in order."""

    seconds: float
    peak: int
    stored: frozenset[int]
    again: tuple[int, ...]
    forward_peak: int
    backward_peak: int


@dataclass(frozen=True)
class StorageProblem:
    """``forward`` and ``backward`` in the order in which they run; ``budget`` in bytes. ``fixed``: values that are
    stored if they are read, ``repeated``: those that are not. ``joined``: a stored
    value takes memory from its writer to its last reader, as in one program, and where others are in its place before
    and after; otherwise all take a block from begin to end.
    """

    values: tuple[ForwardValue, ...]
    forward: tuple[Computation, ...]
    backward: tuple[GradientNode, ...]
    budget: int
    fixed: frozenset[int] = frozenset()
    repeated: frozenset[int] = frozenset()
    joined: bool = False

    @cached_property
    def free(self) -> tuple[int, ...]:
        """The values about which there is something to choose: what the backward reads, or may need to repeat."""
        needed: set[int] = set()
        waiting = [v for node in self.backward for v in node.reads]
        while waiting:
            v = waiting.pop()
            if v not in needed:
                needed.add(v)
                waiting += [r for c in self.values[v].makers for r in self.forward[c].reads]
        return tuple(v for v in sorted(needed - self.fixed - self.repeated) if self.values[v].makers)

    @cached_property
    def last_forward_read(self) -> dict[int, int]:
        """ForwardValue -> the last position of the forward at which it has to be there."""
        last: dict[int, int] = {}
        for position, node in enumerate(self.forward):
            for v in node.reads:
                last[v] = max(last.get(v, 0), position - node.in_place)
            for v in node.writes:
                last.setdefault(v, position)
        return last

    @cached_property
    def birth(self) -> dict[int, int]:
        """ForwardValue -> the position of the forward at which it is written, or written first."""
        return {v: min(value.makers) for v, value in enumerate(self.values) if value.makers}

    def outcome(self, stored: Collection[int]) -> StorageOutcome:
        """What storing ``stored`` comes to, and all that is fixed; values that nobody then reads are not stored."""
        return _Run(self, (frozenset(stored) | self.fixed) - self.repeated).outcome()


@dataclass
class _Run:
    """The backward as it would run: what is computed again runs just before the first that reads it."""

    problem: StorageProblem
    kept: frozenset[int]
    used: dict[int, int] = field(default_factory=dict)  # stored value -> position of its last reader
    first: dict[int, int] = field(default_factory=dict)
    last: dict[int, int] = field(default_factory=dict)
    done: dict[int, None] = field(default_factory=dict)  # computations, in order
    base: list[int] = field(default_factory=list)  # bytes of gradients at each position

    def outcome(self) -> StorageOutcome:
        for node in self.problem.backward:
            self._backward(node)
        return self._summary()

    def _backward(self, node: GradientNode) -> None:
        for c in sorted(self._missing(node.reads)):
            computation = self.problem.forward[c]
            self._touch(computation.reads, computation.in_place)
            self.done[c] = None
            for v in computation.writes:
                if v not in self.kept:
                    self.first.setdefault(v, len(self.base))
            self.base.append(node.before)
        self._touch(node.reads, node.in_place)
        self.base.append(node.live)

    def _missing(self, reads: Iterable[int]) -> set[int]:
        missing: set[int] = set()
        waiting = list(reads)
        while waiting:
            v = waiting.pop()
            if v in self.kept:
                continue
            for c in self.problem.values[v].makers:
                if c not in self.done and c not in missing:
                    missing.add(c)
                    waiting += self.problem.forward[c].reads
        return missing

    def _touch(self, reads: Iterable[int], in_place: bool) -> None:
        """``reads`` are read here, and what is fused into their readers reads its operands here."""
        here = len(self.base)
        waiting, visited = list(reads), set()
        while waiting:
            v = waiting.pop()
            value = self.problem.values[v]
            if not value.makers or v in visited:
                continue
            visited.add(v)
            if v in self.kept:
                self.used[v] = here
                continue
            self.last[v] = max(self.last.get(v, 0), here - (in_place and value.again > 0))
            if value.again == 0:
                waiting += [r for c in value.makers for r in self.problem.forward[c].reads]

    def _summary(self) -> StorageOutcome:
        problem, values = self.problem, self.problem.values
        saved = sum(values[v].bytes for v in self.used)
        stored = frozenset(self.used)
        behind = [0] * (len(self.base) + 2)
        for v, start in self.first.items():
            _add(behind, start, max(self.last.get(v, start), start), values[v].again)
        ahead = [0] * (len(problem.forward) + 2)
        for v, start in problem.birth.items():
            if v not in stored:
                _add(ahead, start, max(problem.last_forward_read.get(v, start), start), values[v].forward)
            elif problem.joined:
                _add(ahead, start, len(problem.forward) - 1, values[v].bytes)
                _add(behind, 0, self.used[v], values[v].bytes)
        block = 0 if problem.joined else saved
        forward = block + max(accumulate(ahead), default=0)
        backward = block + max((a + b for a, b in zip(accumulate(behind), self.base)), default=0)
        seconds = sum(problem.forward[c].seconds for c in self.done) + sum(values[v].writing for v in stored)
        return StorageOutcome(seconds, max(forward, backward), stored, tuple(self.done), forward, backward)


def _add(changes: list[int], first: int, last: int, amount: int) -> None:
    changes[first] += amount
    changes[last + 1] -= amount

"""How long a step takes when computations run in turn on each rank and reductions share one channel (DisCo, 4.4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np

from daceopt.distributed.search.allreduce_time import AllReduceTime
from daceopt.distributed.search.training_graph import TrainingGraph
from daceopt.errors import DaceoptError

Floats: TypeAlias = "np.ndarray"
_ROUNDING = 1e-9  # of sums of seconds


class StepTime(NamedTuple):
    """Seconds of a step, and of its computations and its reductions if neither had the other beside it."""

    seconds: float
    computation: float
    communication: float


class StepEvent(NamedTuple):
    """What happens from ``start`` to ``end`` in a ``lane``."""

    lane: str
    name: str
    start: float
    end: float


class PackedBuckets:
    """Gradients that are reduced together, as arrays: what a simulation needs of them again and again."""

    def __init__(self, buckets: Sequence[Sequence[int]], graph: TrainingGraph, model: AllReduceTime):
        """``buckets`` hold positions of gradients, each once. Raises DaceoptError otherwise."""
        self.buckets = tuple(map(tuple, buckets))
        flat = [g for bucket in self.buckets for g in bucket]
        if sorted(flat) != list(range(len(graph.gradients))) or not all(self.buckets):
            raise DaceoptError("every gradient belongs to one bucket, and no bucket is empty")
        self.flat = np.array(flat, dtype=np.intp)
        self.starts = np.cumsum([0, *map(len, self.buckets[:-1])]) if self.buckets else self.flat
        sizes = np.array([sum(graph.gradients[g].bytes for g in bucket) for bucket in self.buckets], dtype=np.float64)
        self.seconds = model.seconds(sizes)
        self.total = float(self.seconds.sum())
        self.delay = model.taken_seconds(sizes)
        self.beside = model.beside_computing(sizes) - self.delay
        self._graph, self._waiting = graph, dict[int, float]()

    def waiting(self, bucket: int) -> float:
        """Seconds of what is computed when this one is in."""
        if bucket not in self._waiting:
            late = {k for g in self.buckets[bucket] for k in self._graph.gradients[g].behind}
            self._waiting[bucket] = sum(self._graph.computations[k].seconds for k in late)
        return self._waiting[bucket]


class _Reductions(NamedTuple):
    """Of one step: ``order`` of the buckets and, in it, ``starts`` and ``ends`` in seconds of computing, as if that
    went on. When all is ``computed`` that does not wait for the last bucket, the first ``complete`` ones are over, and
    of the next one there is ``left`` (of 1). What waits takes ``behind``."""

    order: Floats
    starts: Floats
    ends: Floats
    computed: float
    complete: int
    left: float
    behind: float

    def computation_end(self, packed: PackedBuckets) -> float:
        """When it is: later by what reductions took of the core."""
        seconds = packed.delay[self.order[: self.complete + 1]]
        partly = (1 - self.left) * float(seconds[self.complete]) if self.complete < len(seconds) else 0.0
        return self.computed + float(seconds[: self.complete].sum()) + partly

    def alone(self, packed: PackedBuckets) -> Floats:
        """Seconds of what is left of each bucket then."""
        seconds = packed.seconds[self.order[self.complete :]]
        seconds[:1] *= self.left
        return seconds


@dataclass(frozen=True)
class StepSimulator:
    """One rank's computations run one after the other; a reduction starts when all ranks have computed all of its
    tensors and the channel is clear, in the order in which buckets become ready, beside the computations.

    The paper takes computations from a ready queue. Nothing but data of the same rank holds a computation back, so the
    queue is never empty before the last one, and its order is the order of the slots. ``slowdowns``: how many times
    longer each rank computes (stragglers); one for all that are alike.

    While ranks compute, a reduction takes what it takes beside that, and computing stands still for the part that its
    core works for the reduction. When all is computed the rest takes what it takes alone, and then what waits for the
    last bucket is computed. Seconds of computing are the clock in which that is simple: a reduction takes those of its
    own that computing has, too.
    """

    slowdowns: tuple[float, ...] = (1.0,)

    def step(self, durations: Floats, slots: Floats, packed: PackedBuckets) -> StepTime:
        """``durations``: of the computation in each slot, in the order in which they run, 0 where none is; ``slots``:
        where each gradient is produced. In a handful of array operations, because a search asks a million times."""
        ends = np.cumsum(durations) * max(self.slowdowns)
        whole = float(ends[-1]) if len(ends) else 0.0
        if not packed.total:
            return StepTime(whole, whole, 0.0)
        reductions = self._reductions(ends, slots, packed)
        seconds = reductions.computation_end(packed) + float(reductions.alone(packed).sum()) + reductions.behind
        return StepTime(seconds, whole, packed.total)

    def _reductions(self, ends: Floats, slots: Floats, packed: PackedBuckets) -> _Reductions:
        ready = np.maximum.reduceat(ends[slots[packed.flat]], packed.starts)
        order = ready.argsort(kind="stable")
        ready, spent = ready[order], packed.beside[order]
        end_times = np.cumsum(spent)
        over = end_times + np.maximum.accumulate(ready - (end_times - spent))
        behind = packed.waiting(int(order[-1])) * max(self.slowdowns)
        computed = max(float(ends[-1]) - behind, float(ready[-1]))
        complete = int(over.searchsorted(computed, side="right"))
        rest = min(1.0, float((over[complete] - computed) / spent[complete])) if complete < len(over) else 0.0
        return _Reductions(order, over - spent, over, computed, complete, rest, float(ends[-1]) - computed)

    def lower_bound(self, durations: Floats, packed: PackedBuckets) -> float:
        """Full overlap: the longer of computing and communicating, as if neither waited for the other."""
        return max(float(np.sum(durations)) * max(self.slowdowns), packed.total)

    def order(self, durations: Floats, slots: Floats, packed: PackedBuckets) -> list[int]:
        """Indices of the buckets in the order in which they are reduced, on all ranks."""
        ends = np.cumsum(durations)
        return [int(k) for k in np.maximum.reduceat(ends[slots[packed.flat]], packed.starts).argsort(kind="stable")]

    def timeline(
        self, durations: Floats, names: Sequence[str], slots: Floats, packed: PackedBuckets
    ) -> list[StepEvent]:
        """The same step as events, of the slowest rank and of the channel. ``names``: of the slots."""
        ends = np.cumsum(durations) * max(self.slowdowns)
        starts = ends - durations * max(self.slowdowns)
        if not packed.total:
            return [StepEvent("computation", n, float(s), float(e)) for n, s, e in zip(names, starts, ends) if e > s]
        reductions = self._reductions(ends, slots, packed)
        reduced = _channel(reductions, packed)
        begins, stops = _pass(starts, reductions, packed, True), _pass(ends, reductions, packed, False)
        computing = zip(names, begins, stops, ends > starts)
        return [StepEvent("computation", n, float(s), float(e)) for n, s, e, some in computing if some] + reduced


def _channel(reductions: _Reductions, packed: PackedBuckets) -> list[StepEvent]:
    """The reductions as events."""
    events: list[StepEvent] = []
    clear, halted, alone = reductions.computation_end(packed), 0.0, reductions.alone(packed)
    for k, bucket in enumerate(reductions.order):
        start, halted = float(reductions.starts[k]) + halted, halted + float(packed.delay[bucket])
        if k < reductions.complete:
            end = float(reductions.ends[k]) + halted
        else:
            start = start if k == reductions.complete else clear
            end = clear = clear + float(alone[k - reductions.complete])
        name = f"bucket {bucket} ({len(packed.buckets[bucket])} tensors)"
        events.append(StepEvent("communication", name, start, end))
    return events


def _pass(clock: Floats, reductions: _Reductions, packed: PackedBuckets, begins: bool) -> Floats:
    """When so many seconds are computed; ``begins``: and the next one begins."""
    passed = clock.copy()
    for bucket, start, end in zip(reductions.order, reductions.starts, reductions.ends):
        reached = clock >= start if begins else clock > start
        part = np.clip((clock - start) / (end - start), 0.0, 1.0) if end > start else reached
        passed += packed.delay[bucket] * part
    waited = reductions.computation_end(packed) + float(reductions.alone(packed).sum())
    late = clock > reductions.computed * (1 - _ROUNDING if begins else 1 + _ROUNDING)
    return np.where(late, waited + clock - reductions.computed, passed)

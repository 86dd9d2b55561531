"""How long a step takes when computations run in turn on each rank and reductions share one channel (DisCo, 4.4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np

from daceopt.distributed.allreduce_time import AllReduceTime
from daceopt.distributed.training_graph import GradientTensor
from daceopt.errors import DaceoptError

Floats: TypeAlias = "np.ndarray"


class StepTime(NamedTuple):
    """Seconds of a step, of its computations, and of its reductions."""

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

    def __init__(self, buckets: Sequence[Sequence[int]], gradients: Sequence[GradientTensor], model: AllReduceTime):
        """``buckets`` hold positions of gradients, each once. Raises DaceoptError otherwise."""
        self.buckets = tuple(map(tuple, buckets))
        flat = [g for bucket in self.buckets for g in bucket]
        if sorted(flat) != list(range(len(gradients))) or not all(self.buckets):
            raise DaceoptError("every gradient belongs to one bucket, and no bucket is empty")
        self.flat = np.array(flat, dtype=np.intp)
        self.starts = np.cumsum([0, *map(len, self.buckets[:-1])]) if self.buckets else self.flat
        sizes = [sum(gradients[g].bytes for g in bucket) for bucket in self.buckets]
        self.seconds = np.array([model.seconds(n) for n in sizes], dtype=np.float64)
        self.total = float(self.seconds.sum())
        taken = model.processor if model.world > 1 else 0.0
        self.processor = taken * np.array(sizes, dtype=np.float64) if taken else None


@dataclass(frozen=True)
class StepSimulator:
    """One rank's computations run one after the other; a reduction starts when all ranks have computed all of its
    tensors and the channel is clear, in the order in which buckets become ready, beside the computations.

    The paper takes computations from a ready queue. Nothing but data of the same rank holds a computation back, so the
    queue is never empty before the last one, and its order is the order of the slots. ``slowdowns``: how many times
    longer each rank computes (stragglers); one for all that are alike. Where a reduction takes processor time of the
    core that computes, what is computed behind its last gradient comes so much later.
    """

    slowdowns: tuple[float, ...] = (1.0,)

    def step(self, durations: Floats, slots: Floats, packed: PackedBuckets) -> StepTime:
        """``durations``: of the computation in each slot, in the order in which they run, 0 where none is; ``slots``:
        where each gradient is produced. In a handful of array operations, because a search asks a million times."""
        ends = self._ends(durations, slots, packed)
        computed = float(ends[-1]) if len(ends) else 0.0
        if not packed.total:
            return StepTime(computed, computed, 0.0)
        ready = np.maximum.reduceat(ends[slots[packed.flat]], packed.starts)
        order = ready.argsort(kind="stable")
        taken = packed.seconds[order]
        done = np.cumsum(taken)
        last = float(done[-1] + (ready[order] - (done - taken)).max())
        return StepTime(max(computed, last), computed, packed.total)

    def _ends(self, durations: Floats, slots: Floats, packed: PackedBuckets) -> Floats:
        """When the computation of each slot ends, on the slowest rank."""
        if packed.processor is not None:
            behind = np.maximum.reduceat(slots[packed.flat], packed.starts) + 1
            taken = np.bincount(behind, packed.processor, len(durations) + 1)
            return np.cumsum(durations * max(self.slowdowns) + taken[: len(durations)])
        return np.cumsum(durations) * max(self.slowdowns)

    def bound(self, durations: Floats, packed: PackedBuckets) -> float:
        """Full overlap: the longer of computing and communicating, as if neither waited for the other."""
        return max(float(np.sum(durations)) * max(self.slowdowns), packed.total)

    def order(self, durations: Floats, slots: Floats, packed: PackedBuckets) -> list[int]:
        """Indices of the buckets in the order in which they are reduced, on all ranks."""
        ends = self._ends(durations, slots, packed)
        return [int(k) for k in np.maximum.reduceat(ends[slots[packed.flat]], packed.starts).argsort(kind="stable")]

    def timeline(
        self, durations: Floats, names: Sequence[str], slots: Floats, packed: PackedBuckets
    ) -> list[StepEvent]:
        """The same step as events, of the slowest rank and of the channel. ``names``: of the slots."""
        ends = self._ends(durations, slots, packed)
        starts = ends - durations * max(self.slowdowns)
        found = [StepEvent("computation", n, float(s), float(e)) for n, s, e in zip(names, starts, ends) if e > s]
        clear = 0.0
        for k in self.order(durations, slots, packed) if packed.total else ():
            bucket = packed.buckets[k]
            start = max(clear, max(float(ends[slots[g]]) for g in bucket))
            clear = start + float(packed.seconds[k])
            found.append(StepEvent("communication", f"bucket {k} ({len(bucket)} tensors)", start, clear))
        return found

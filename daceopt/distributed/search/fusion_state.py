"""A candidate of the search: which computations are one kernel, and which gradients are one bucket."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from daceopt.distributed.search.allreduce_time import AllReduceTime
from daceopt.distributed.search.step_simulator import PackedBuckets, StepEvent, StepSimulator, StepTime
from daceopt.distributed.search.training_graph import GroupModel, KernelGroup, TrainingGraph, joints, leaves
from daceopt.ir.fusion.clusters import Clusters

Method: TypeAlias = Literal["fuse", "copy", "combine"]
METHODS: tuple[Method, ...] = ("fuse", "copy", "combine")
"""Non-duplicate fusion, duplicate fusion, tensor fusion (DisCo, section 4.5)."""


class Move(NamedTuple):
    """One application of a method: to the groups of two computations, or the buckets of two gradients."""

    method: Method
    first: int
    second: int


class FusionProblem(NamedTuple):
    """What is searched: the graph, what is known of groups, of reductions, and how a step is simulated."""

    graph: TrainingGraph
    model: GroupModel
    reduction: AllReduceTime
    simulator: StepSimulator = StepSimulator()


class _Slots(NamedTuple):
    """Seconds by slot, and the slot in which each gradient is produced."""

    durations: np.ndarray
    producers: np.ndarray


class FusionState:
    """Starts with nothing fused. Every state that moves lead to is valid: no cycle, no result that is lost, each
    gradient in one bucket; buckets are reduced in the same order on all ranks, because all simulate the same."""

    def __init__(self, problem: FusionProblem):
        self.problem, graph = problem, problem.graph
        after: dict[int, list[int]] = {k: [] for k in range(len(graph.computations))}
        for k, computation in enumerate(graph.computations):
            for p in computation.before:
                after[p].append(k)
        self.clusters = Clusters(after, ordered=True)
        self.groups = {k: KernelGroup.single(k) for k in after}  # by the leader of the cluster
        self._seconds = np.array([c.seconds for c in graph.computations])  # by the leader, too
        self._sequence: tuple[int, ...] = ()
        self.packed = PackedBuckets([[k] for k in range(len(graph.gradients))], graph, problem.reduction)

    @classmethod
    def of(cls, problem: FusionProblem, groups: Iterable[KernelGroup]) -> FusionState:
        """The state in which each of the ``groups`` is a kernel, merged in the order of its tree; the rest are single.

        Raises CyclicMerge where one group would have to run both before and after another.
        """
        state, groups = cls(problem), list(groups)
        owner = {k: group for group in groups for k in group.exported}
        after: dict[int, list[int]] = {k: [] for k in state.groups}
        for k in after:
            for p in _read(problem.graph, k, owner):
                after[p].append(k)
        state.clusters = Clusters(after, ordered=True)
        for group in groups:
            leader = next(iter(group.exported))
            for joint in joints(group.tree):
                ends = [next((k for k in leaves(part) if k in group.exported), None) for part in joint]
                if ends[0] is not None and ends[1] is not None:
                    leader = state.clusters.merge(ends[0], ends[1])
            for k in group.exported:
                del state.groups[k]
            state._put(leader, group)
        return state

    def copy(self) -> FusionState:
        """The same state, to be changed in another way."""
        new = object.__new__(FusionState)
        new.problem, new.packed, new._sequence = self.problem, self.packed, self._sequence
        new.clusters, new.groups, new._seconds = self.clusters.copy(), dict(self.groups), self._seconds.copy()
        return new

    # ---------------------------------------------------------------- moves

    def apply(self, move: Move) -> str | None:
        """Make the move, or say what keeps it from being made, and change nothing."""
        if move.method == "combine":
            return self._combine(move.first, move.second)
        first, second = self.clusters.leader(move.first), self.clusters.leader(move.second)
        if first == second:
            return "they are one kernel already"
        fusible = self.problem.graph.computations
        if not (fusible[move.first].fusible and fusible[move.second].fusible):
            return "one of both takes no others"
        if not self.groups[first].members.isdisjoint(self.groups[second].members):
            return "one of both has a copy of what the other computes"
        if self._reads_copies(first, second) or self._reads_copies(second, first):
            return "one of both has a copy of what the other reads"
        reason = self._fuse(first, second) if move.method == "fuse" else self._copy(first, second)
        if reason is None:
            self.__dict__.pop("_as_captured", None)
            self.__dict__.pop("_enacted", None)
        return reason

    def _reads_copies(self, reader: int, other: int) -> bool:
        """Does a member of one group read, from elsewhere, what the other has a copy of for itself?"""
        copies = self.groups[other].members - self.groups[other].exported
        computations = self.problem.graph.computations
        return bool(copies) and any(not copies.isdisjoint(computations[k].before) for k in self.groups[reader].members)

    def _fuse(self, first: int, second: int) -> str | None:
        first, second = self.clusters.in_order(first, second)
        if self.clusters.obstacle(first, second) is not None:
            return "what lies between would have to run both before and after"
        reason = self.problem.model.why_not(self.groups[first], self.groups[second], False)
        if reason is not None:
            return reason
        joined = self.groups.pop(second).with_first(self.groups.pop(first), copied=False)
        self._put(self.clusters.merge(first, second), joined)
        return None

    def _copy(self, first: int, second: int) -> str | None:
        readers = self.clusters.successors(first)
        if second not in readers:
            return "the second does not read what the first computes"
        if len(readers) < 2:
            return "nobody else reads what would be copied"
        reason = self.problem.model.why_not(self.groups[first], self.groups[second], True)
        if reason is not None:
            return reason
        self.clusters.bypass(first, second)
        self._put(second, self.groups[second].with_first(self.groups[first], copied=True))
        return None

    def _put(self, leader: int, group: KernelGroup) -> None:
        self.groups[leader] = group
        self._seconds[leader] = self.problem.model.seconds(group)

    def _combine(self, first: int, second: int) -> str | None:
        buckets = list(self.packed.buckets)
        a = next(b for b in buckets if first in b)
        b = next(b for b in buckets if second in b)
        if a is b:
            return "they are one bucket already"
        if len({self.problem.graph.gradients[g].dtype for g in (first, second)}) > 1:
            return "their element types differ"
        buckets[buckets.index(a)] = a + b
        buckets.remove(b)
        self.packed = PackedBuckets(buckets, self.problem.graph, self.problem.reduction)
        self._sequence = ()
        self.__dict__.pop("_enacted", None)
        return None

    # ---------------------------------------------------------------- cost

    @cached_property
    def _as_captured(self) -> _Slots:
        """Kernels in the order of the program before exchanges are placed."""
        positions = self.clusters.positions()
        return self._slots(list(positions), list(positions.values()))

    def _slots(self, leaders: list[int], slots: list[int]) -> _Slots:
        """``slots``: where the kernel of each of ``leaders`` runs."""
        graph, place = self.problem.graph, dict(zip(leaders, slots))
        durations = np.zeros(len(graph.computations))
        durations[slots] = self._seconds[leaders]
        producers = [place[self.clusters.leader(k)] for k in graph.producers]
        return _Slots(durations, np.array(producers, dtype=np.intp))

    @cached_property
    def _enacted(self) -> tuple[_Slots, PackedBuckets]:
        """What is simulated: kernels in the order in which they run, buckets in that in which they start."""
        order, problem = self.order(), self.problem
        buckets = self.ready_order()
        in_turn = PackedBuckets(buckets, problem.graph, problem.reduction)
        return self._slots(order, list(range(len(order)))), in_turn

    def order(self) -> list[int]:
        """The leaders of kernels in the order in which they run once the step ``collective-placement`` has placed
        exchanges: what a bucket needs runs before all that later ones need alone, and what waits for averages behind
        the last start, by the last bucket that it waits for."""
        graph, buckets, leaders = self.problem.graph, self.ready_order(), self.clusters.topological()
        late = self._latest_waits(buckets, leaders)
        place: dict[int, int] = {}
        for k, bucket in enumerate(buckets):
            needed = [self.clusters.leader(graph.gradients[g].producer) for g in bucket]
            while needed:
                kernel = needed.pop()
                if kernel not in place and kernel not in late:
                    place[kernel] = k
                    needed += self.clusters.predecessors(kernel)
        for kernel in leaders:
            if kernel not in place and kernel not in late:
                before = self.clusters.predecessors(kernel)
                place[kernel] = max((place[p] for p in before if p in place), default=0)
        return sorted(leaders, key=lambda n: (n in late, late[n] if n in late else place[n]))

    def _latest_waits(self, buckets: Sequence[Sequence[int]], leaders: Sequence[int]) -> dict[int, int]:
        """Kernels that need averages -> the last of the buckets that they wait for."""
        late: dict[int, int] = {}
        for k, bucket in enumerate(buckets):
            behind = (n for g in bucket for n in self.problem.graph.gradients[g].behind)
            late |= {self.clusters.leader(n): k for n in behind}
        for kernel in leaders:
            before = [late[p] for p in self.clusters.predecessors(kernel) if p in late]
            if before:
                late[kernel] = max([*before, late.get(kernel, -1)])
        return late

    @property
    def time(self) -> StepTime:
        """Simulated."""
        slots, packed = self._enacted
        return self.problem.simulator.step(*slots, packed)

    @property
    def bound(self) -> float:
        """Seconds of a step with these kernels and buckets if computing and communicating overlapped in full."""
        return self.problem.simulator.lower_bound(self._as_captured.durations, self.packed)

    def ready_order(self) -> list[tuple[int, ...]]:
        """Buckets in the order in which their reductions start: that of a strategy, where the state is made of one
        (``start_in``), else that in which the program before exchanges are placed computes them."""
        if self._sequence:
            return [self.packed.buckets[k] for k in self._sequence]
        return [self.packed.buckets[k] for k in self.problem.simulator.order(*self._as_captured, self.packed)]

    def start_in(self, first: Sequence[int]) -> None:
        """Let buckets start in the order of these gradients, one of each, instead."""
        position = {g: k for k, bucket in enumerate(self.packed.buckets) for g in bucket}
        self._sequence = tuple(position[g] for g in first)
        self.__dict__.pop("_enacted", None)

    def timeline(self) -> list[StepEvent]:
        """What happens when in a simulated step."""
        computations, order = self.problem.graph.computations, self.order()
        names = [" + ".join(computations[k].name for k in sorted(self.groups[n].members)) for n in order]
        slots, packed = self._enacted
        names += [""] * (len(slots.durations) - len(names))
        return self.problem.simulator.timeline(slots.durations, names, slots.producers, packed)


def _read(graph: TrainingGraph, position: int, owner: Mapping[int, KernelGroup]) -> set[int]:
    """What a computation reads once its kernel has the copies that it has: of a copy, what that reads."""
    copies = owner[position].members - owner[position].exported if position in owner else frozenset()
    positions: set[int] = set()
    waiting = [position]
    while waiting:
        before = graph.computations[waiting.pop()].before
        positions.update(p for p in before if p not in copies)
        waiting += [p for p in before if p in copies]
    return positions

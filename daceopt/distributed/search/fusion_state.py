"""A candidate of the search: which computations are one kernel, and which gradients are one bucket."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
        new.problem, new.packed = self.problem, self.packed
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
            self.__dict__.pop("_arrays", None)
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
        return None

    # ---------------------------------------------------------------- cost

    @cached_property
    def _arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """Seconds by slot of the order, and the slot of each gradient."""
        graph, positions = self.problem.graph, self.clusters.positions()
        leaders, slots = list(positions), list(positions.values())
        durations = np.zeros(len(graph.computations))
        durations[slots] = self._seconds[leaders]
        return durations, np.array(self.clusters.positions_of(graph.producers), dtype=np.intp)

    @property
    def time(self) -> StepTime:
        """Simulated."""
        return self.problem.simulator.step(*self._arrays, self.packed)

    @property
    def bound(self) -> float:
        """Seconds of a step with these kernels and buckets if computing and communicating overlapped in full."""
        return self.problem.simulator.lower_bound(self._arrays[0], self.packed)

    def ready_order(self) -> list[tuple[int, ...]]:
        """Buckets in the order in which they are reduced."""
        return [self.packed.buckets[k] for k in self.problem.simulator.order(*self._arrays, self.packed)]

    def timeline(self) -> list[StepEvent]:
        """What happens when in a simulated step."""
        names = [""] * len(self.problem.graph.computations)
        for leader, group in self.groups.items():
            own = [self.problem.graph.computations[k].name for k in sorted(group.members)]
            names[self.clusters.position(leader)] = " + ".join(own)
        durations, slots = self._arrays
        return self.problem.simulator.timeline(durations, names, slots, self.packed)


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

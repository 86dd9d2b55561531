"""The simulator beside one that follows events, on every rank."""

from __future__ import annotations

from collections import deque
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daceopt.distributed.search.allreduce_time import AllReduceTime, LinearTime
from daceopt.distributed.search.fusion_state import FusionProblem, FusionState, Move
from daceopt.distributed.search.step_simulator import PackedBuckets, StepSimulator
from daceopt.distributed.search.training_graph import GradientTensor, GroupModel, StepOperator, TrainingGraph
from daceopt.errors import DaceoptError
from tests.distributed.problems import graphs, moves, problems

SINGLE = GroupModel(lambda a, b, copied: None, lambda group: 0.0)


def ready_times(state: FusionState) -> list[float]:
    """Seconds of computing until all gradients of each bucket are there on every rank, and at last until all is over.

    Section 4.4 word by word: a ready queue on each rank, which takes what is ready first in the order of slots, as the
    compiled program runs its nodes.
    """
    problem = state.problem
    order = state.order()
    seconds = {leader: problem.model.seconds(group) for leader, group in state.groups.items()}
    ended: list[dict[int, float]] = []
    for slowdown in problem.simulator.slowdowns:
        queue, clock, done = deque(order), 0.0, {}
        while queue:
            leader = next(k for k in queue if all(p in done for p in state.clusters.predecessors(k)))
            assert leader == queue[0], "the order of slots is topological"
            queue.remove(leader)
            start = max([clock, *(done[p] for p in state.clusters.predecessors(leader))])
            clock = done[leader] = start + seconds[leader] * slowdown
        ended.append(done)
    found = []
    for bucket in state.ready_order():
        leaders = [state.clusters.leader(problem.graph.gradients[g].producer) for g in bucket]
        found.append(max(done[p] for done in ended for p in leaders))
    return [*found, max(max(done.values()) for done in ended)]


def brute_force(state: FusionState) -> float:
    """Follows a core and a channel from event to event."""
    problem, graph = state.problem, state.problem.graph
    *ready, whole = ready_times(state)
    if problem.reduction.world == 1 or not ready:
        return whole
    buckets = state.ready_order()
    order = sorted(range(len(ready)), key=lambda k: (ready[k], k))
    sizes = [sum(graph.gradients[g].bytes for g in buckets[k]) for k in order]
    late = {k for g in buckets[order[-1]] for k in graph.gradients[g].behind}
    behind = sum(graph.computations[k].seconds for k in late) * max(problem.simulator.slowdowns)
    computing = max(whole - behind, ready[order[-1]])
    clock = computed = 0.0
    for k, size in zip(order, sizes):
        start = max(computed, ready[k])
        clock, computed = clock + start - computed, start
        reduction, left = problem.reduction, 1.0  # of this one, alone in the channel
        beside, taken = reduction.beside_computing(size), reduction.taken_seconds(size)
        if computed < computing and beside > taken:  # the core has the rest of the time for computing
            left = max(0.0, 1.0 - (computing - computed) / (beside - taken))
            clock, computed = clock + (1 - left) * beside, computed + (1 - left) * (beside - taken)
        elif beside == taken:
            left, clock = 0.0, clock + beside
        clock += left * reduction.seconds(size)
        computed = computing if left else computed
    return clock + max(0.0, computing - computed) + whole - computing


@given(st.data())
def test_it_says_what_following_events_says(data: st.DataObject) -> None:
    problem = data.draw(problems())
    state = FusionState(problem)
    for move in data.draw(moves(problem.graph)):
        state.apply(move)
    found, expected = state.time, brute_force(state)
    assert found.seconds == pytest.approx(expected, rel=1e-9, abs=1e-9)
    assert found.seconds >= state.bound * (1 - 1e-12)
    events = state.timeline()
    assert max((e.end for e in events), default=0.0) == pytest.approx(found.seconds, rel=1e-9, abs=1e-9)
    for lane in ("computation", "communication"):
        own = sorted((e for e in events if e.lane == lane), key=lambda e: (e.start, e.end))
        assert all(a.end <= b.start + 1e-6 for a, b in pairwise(own)), "one after the other"


@given(st.data())
def test_a_slower_rank_holds_all_up(data: st.DataObject) -> None:
    problem = data.draw(problems())
    alone = FusionState(problem._replace(simulator=StepSimulator((1.0,)))).time
    behind = FusionState(problem._replace(simulator=StepSimulator((1.0, 3.0)))).time
    assert alone.seconds <= behind.seconds <= 3 * alone.seconds + 1e-9
    assert behind.computation == pytest.approx(3 * alone.computation)


@given(graphs())
def test_a_world_of_one_sends_nothing(graph: TrainingGraph) -> None:
    time = FusionState(FusionProblem(graph, SINGLE, AllReduceTime(1, 1.0, 1.0))).time
    assert time.communication == 0
    assert time.seconds == pytest.approx(sum(c.seconds for c in graph.computations))


def test_two_buckets_beside_the_computations() -> None:
    computations = (StepOperator("a", 2.0), StepOperator("b", 3.0, (0,)), StepOperator("c", 1.0, (1,)))
    graph = TrainingGraph(computations, (GradientTensor("ga", 4, 0), GradientTensor("gc", 1, 2)))
    state = FusionState(FusionProblem(graph, SINGLE, AllReduceTime(2, 1.0, 0.5)))
    assert state.time == (8.0, 6.0, 6.0)  # 2 + 4.5, then the second, ready at 6, waits until 6.5
    assert [(e.name, e.start, e.end) for e in state.timeline() if e.lane == "communication"] == [
        ("bucket 0 (1 tensors)", 2.0, 6.5),
        ("bucket 1 (1 tensors)", 6.5, 8.0),
    ]
    assert state.apply(Move("combine", 0, 1)) is None
    assert state.time == (11.5, 6.0, 5.5)
    assert state.bound == 6.0


THREE = (StepOperator("a", 2.0), StepOperator("b", 3.0, (0,)), StepOperator("c", 1.0, (1,)))


def events_of(state: FusionState) -> dict[str, tuple[float, float]]:
    return {e.name.removesuffix(" (1 tensors)"): (e.start, e.end) for e in state.timeline()}


def test_a_reduction_on_the_core_that_computes_halts_what_is_computed_meanwhile() -> None:
    graph = TrainingGraph(THREE, (GradientTensor("ga", 4, 0), GradientTensor("gc", 1, 2)))
    reduction = AllReduceTime(2, 1.0, 0.0, beside=None, processor=LinearTime(0.5, 0.0))
    state = FusionState(FusionProblem(graph, SINGLE, reduction))
    # ga from 2 to 6, in which b computes for two of its three seconds; c computes until 8; gc, alone, until 9
    assert state.time == (9.0, 6.0, 5.0)
    assert events_of(state) == {"a": (0, 2), "b": (2, 7), "c": (7, 8), "bucket 0": (2, 6), "bucket 1": (8, 9)}
    assert state.bound == 6.0
    alone = FusionState(FusionProblem(graph, SINGLE, AllReduceTime(1, 1.0, 0.5, None, LinearTime(0.5, 0.0))))
    assert alone.time == (6.0, 6.0, 0.0)


def test_reductions_are_faster_when_nothing_computes() -> None:
    graph = TrainingGraph(THREE, (GradientTensor("ga", 1, 0), GradientTensor("gb", 1, 1), GradientTensor("gc", 1, 2)))
    reduction = AllReduceTime(2, 0.0, 0.5, beside=LinearTime(0.0, 3.5), processor=LinearTime(0.0, 0.5))
    state = FusionState(FusionProblem(graph, SINGLE, reduction))
    # ga from 2 to 5.5, which takes half a second from b, that ends at 5.5; gb has a second of its 3.5, of which the
    # core works a third of half a second for it; what is left of it (two thirds) takes a third of a second; gc half one
    assert state.time.seconds == pytest.approx(5.5 + 1 + 1 / 6 + 1 / 3 + 1 / 2)
    expected = {"b": (2, 5.5), "c": (5.5, 20 / 3), "bucket 0": (2, 5.5), "bucket 1": (5.5, 7), "bucket 2": (7, 7.5)}
    found = events_of(state)
    for name, (start, end) in expected.items():
        assert found[name] == (pytest.approx(start), pytest.approx(end)), name
    assert state.apply(Move("combine", 0, 1)) is None and state.apply(Move("combine", 0, 2)) is None
    assert state.time.seconds == 6.5  # one call, when all is computed


def test_what_needs_the_last_average_is_computed_behind_it() -> None:
    computations = (*THREE, StepOperator("ua", 1.0, (0,)), StepOperator("uc", 2.0, (2,)))
    gradients = (GradientTensor("ga", 4, 0, behind=(3,)), GradientTensor("gc", 3, 2, behind=(4,)))
    state = FusionState(FusionProblem(TrainingGraph(computations, gradients), SINGLE, AllReduceTime(2, 1.0, 0.0)))
    assert state.time == (11.0, 9.0, 7.0)  # gc from 6 to 9, ua beside it, then uc
    assert events_of(state)["ua"] == (6, 7) and events_of(state)["uc"] == (9, 11)
    assert state.apply(Move("combine", 0, 1)) is None
    assert state.time == (16.0, 9.0, 7.0)  # both updates wait for all
    with pytest.raises(DaceoptError, match="needs its average stands before it"):
        TrainingGraph(computations, (GradientTensor("gc", 3, 2, behind=(1,)),))


def test_wrong_buckets_are_refused() -> None:
    graph = TrainingGraph((StepOperator("c", 1.0),), (GradientTensor("a", 1, 0), GradientTensor("b", 1, 0)))
    for buckets in ([[0]], [[0], [0, 1]], [[0, 1], []]):
        with pytest.raises(DaceoptError, match="every gradient belongs to one bucket"):
            PackedBuckets(buckets, graph, AllReduceTime(2, 1.0, 0.0))


def test_ready_at_the_same_time_keeps_the_order() -> None:
    graph = TrainingGraph((StepOperator("c", 1.0),), (GradientTensor("a", 1, 0), GradientTensor("b", 1, 0)))
    packed = PackedBuckets([[1], [0]], graph, AllReduceTime(2, 1.0, 0))
    assert StepSimulator().order(np.array([1.0]), np.array([0, 0]), packed) == [0, 1]

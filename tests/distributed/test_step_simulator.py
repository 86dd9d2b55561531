"""The simulator beside one that follows events, on every rank."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daceopt.distributed.allreduce_time import AllReduceTime
from daceopt.distributed.fusion_state import FusionProblem, FusionState, Move
from daceopt.distributed.step_simulator import PackedBuckets, StepSimulator
from daceopt.distributed.training_graph import GradientTensor, GroupModel, StepOperator, TrainingGraph
from daceopt.errors import DaceoptError
from tests.distributed.problems import graphs, moves, problems

SINGLE = GroupModel(lambda a, b, copied: None, lambda group: 0.0)


def brute_force(state: FusionState) -> float:
    """Section 4.4 word by word: a ready queue on each rank, a channel, buckets in the order in which they are ready.

    Ranks take what is ready first in the order of slots, as the compiled program runs its nodes.
    """
    problem = state.problem
    durations = state._arrays[0]
    order = sorted(state.groups, key=state.clusters.position)
    ended: list[dict[int, float]] = []
    for slowdown in problem.simulator.slowdowns:
        queue, clock, done = deque(order), 0.0, {}
        while queue:
            leader = next(k for k in queue if all(p in done for p in state.clusters.predecessors(k)))
            assert leader == queue[0], "the order of slots is topological"
            queue.remove(leader)
            start = max([clock, *(done[p] for p in state.clusters.predecessors(leader))])
            clock = done[leader] = start + float(durations[state.clusters.position(leader)]) * slowdown
        ended.append(done)
    step = max(max(done.values()) for done in ended)
    if problem.reduction.world == 1:
        return step
    waiting = []
    for k, bucket in enumerate(state.packed.buckets):
        leaders = [state.clusters.leader(problem.graph.gradients[g].producer) for g in bucket]
        size = sum(problem.graph.gradients[g].bytes for g in bucket)
        waiting.append((max(done[p] for done in ended for p in leaders), k, size))
    clear = 0.0
    for ready, _, size in sorted(waiting):
        clear = max(clear, ready) + problem.reduction.per_byte * size + problem.reduction.overhead
    return max(step, clear)


@given(st.data())
def test_it_says_what_following_events_says(data: st.DataObject) -> None:
    problem = data.draw(problems())
    state = FusionState(problem)
    for move in data.draw(moves(problem.graph)):
        state.apply(move)
    found, expected = state.time, brute_force(state)
    assert found.seconds == pytest.approx(expected, rel=1e-12, abs=1e-12)
    assert found.seconds >= state.bound * (1 - 1e-12)
    events = state.timeline()
    assert max((e.end for e in events), default=0.0) == pytest.approx(found.seconds, rel=1e-12, abs=1e-12)


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


def test_a_reduction_on_the_core_that_computes_delays_what_is_computed_behind_it() -> None:
    computations = (StepOperator("a", 2.0), StepOperator("b", 3.0, (0,)), StepOperator("c", 1.0, (1,)))
    graph = TrainingGraph(computations, (GradientTensor("ga", 4, 0), GradientTensor("gc", 1, 2)))
    reduction = AllReduceTime(2, per_byte=1.0, overhead=0.5, processor=0.5)
    state = FusionState(FusionProblem(graph, SINGLE, reduction))
    assert state.time == (9.5, 8.0, 6.0)  # b ends at 2 + 2 + 3; behind c nothing is computed
    events = {e.name: (e.start, e.end) for e in state.timeline()}
    assert events["b"] == (4.0, 7.0) and events["bucket 1 (1 tensors)"] == (8.0, 9.5)
    assert state.bound == 6.0
    alone = FusionState(FusionProblem(graph, SINGLE, AllReduceTime(1, 1.0, 0.5, 0.5)))
    assert alone.time == (6.0, 6.0, 0.0)


def test_wrong_buckets_are_refused() -> None:
    gradients = [GradientTensor("a", 1, 0), GradientTensor("b", 1, 0)]
    for buckets in ([[0]], [[0], [0, 1]], [[0, 1], []]):
        with pytest.raises(DaceoptError, match="every gradient belongs to one bucket"):
            PackedBuckets(buckets, gradients, AllReduceTime(2, 1.0, 0.0))


def test_ready_at_the_same_time_keeps_the_order() -> None:
    packed = PackedBuckets([[1], [0]], [GradientTensor("a", 1, 0), GradientTensor("b", 1, 0)], AllReduceTime(2, 1.0, 0))
    assert StepSimulator().order(np.array([1.0]), np.array([0, 0]), packed) == [0, 1]

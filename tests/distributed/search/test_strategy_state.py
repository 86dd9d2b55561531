from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daceopt.distributed.search.allreduce_time import AllReduceTime
from daceopt.distributed.search.baselines import apply_moves
from daceopt.distributed.search.fusion_state import FusionProblem, FusionState, Move
from daceopt.distributed.search.strategy import Bucket, Identity, OperatorGroup, Strategy, Weight
from daceopt.distributed.search.strategy_search import several
from daceopt.distributed.search.strategy_state import simulate
from daceopt.distributed.search.training_graph import StepOperator, TrainingGraph
from daceopt.errors import StrategyError
from tests.distributed.problems import model_of, moves, problems
from tests.distributed.search.test_backtracking import check_valid


def strategy_of(state: FusionState) -> Strategy:
    graph = state.problem.graph
    weights = tuple(Weight(g.name, "float32", (1,)) for g in graph.gradients)
    buckets = tuple(Bucket(tuple(graph.gradients[g].name for g in bucket)) for bucket in state.packed.buckets)
    groups = tuple(OperatorGroup(*graph.name(group)) for group in several(state))
    return Strategy(Identity(weights, state.problem.reduction.world), buckets, groups)


@given(st.data())
def test_a_strategy_is_the_state_that_it_was_made_of(data: st.DataObject) -> None:
    """Its kernels with their copies and the order of their merges, and its buckets."""
    problem = data.draw(problems())
    state = apply_moves(problem, data.draw(moves(problem.graph)))
    found = simulate(problem, strategy_of(state), [])
    check_valid(found)
    if several(state):
        assert set(found.groups.values()) == set(state.groups.values())
    assert found.packed.buckets == state.packed.buckets
    assert found.time.communication == state.time.communication
    assert found.time.computation == pytest.approx(state.time.computation, rel=1e-12)


@pytest.fixture
def chain() -> FusionProblem:
    """a -> b -> c, a -> d"""
    before = {"a": (), "b": (0,), "c": (1,), "d": (0,)}
    graph = TrainingGraph(tuple(StepOperator(n, 1.0, p) for n, p in before.items()), ())
    return FusionProblem(graph, model_of(graph, 3), AllReduceTime(2, 0.0, 0.0))


def of_groups(*groups: OperatorGroup) -> Strategy:
    return Strategy(Identity((), 2), (), groups)


def test_copies_are_computed_twice(chain: FusionProblem) -> None:
    """A kernel of two takes 7/8 of the time of both: b with a copy of a, and a, c and d."""
    state = apply_moves(chain, [Move("copy", 0, 1)])
    assert state.time.computation == 2 * 7 / 8 + 3
    assert simulate(chain, strategy_of(state), []).time == state.time
    assert simulate(chain, of_groups(OperatorGroup(("a", "b"))), []).time.computation == 2 * 7 / 8 + 2


def test_merges_that_are_not_said_are_found(chain: FusionProblem) -> None:
    found = simulate(chain, of_groups(OperatorGroup(("c", "a", "b"))), [])
    assert [g.tree for g in several(found)] == [((0, 1), 2)]
    said = simulate(chain, of_groups(OperatorGroup(("c", "a", "b"), merges=((2, 0),))), [])
    assert [g.tree for g in several(said)] == [(0, (1, 2))]


@pytest.mark.parametrize(
    ("group", "message"),
    [
        (OperatorGroup(("a", "x")), "groups x, which is no kernel of this step"),
        (OperatorGroup(("a", "b"), merges=((0, 2),)), r"a \+ b cannot be one kernel: it has no nodes \(0, 2\)"),
        (OperatorGroup(("a", "b"), merges=((0, 1), (1, 0))), "they are one already"),
        (OperatorGroup(("a", "c", "b"), merges=((0, 1),)), "would have to run both before and after"),
        (OperatorGroup(("a", "b", "c", "d")), "cannot be one kernel: too many"),
    ],
)
def test_what_cannot_be_is_refused(chain: FusionProblem, group: OperatorGroup, message: str) -> None:
    with pytest.raises(StrategyError, match=message):
        simulate(chain, of_groups(group), [])

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daceopt.distributed.search.allreduce_time import AllReduceTime
from daceopt.distributed.search.backtracking import BacktrackingSearch, SearchEffort
from daceopt.distributed.search.baselines import apply_moves, baselines, one_bucket_bound
from daceopt.distributed.search.fusion_state import FusionProblem, FusionState, Move
from daceopt.distributed.search.training_graph import GradientTensor, StepOperator, TrainingGraph, leaves
from daceopt.errors import DaceoptError
from tests.distributed.problems import model_of, moves, problems


def check_valid(state: FusionState) -> None:
    """Each result is exported once, each kernel runs behind what it reads, each gradient is in one bucket."""
    graph = state.problem.graph
    exported = sorted(k for group in state.groups.values() for k in group.exported)
    assert exported == list(range(len(graph.computations)))
    home = {k: leader for leader, group in state.groups.items() for k in group.exported}
    for leader, group in state.groups.items():
        assert sorted(leaves(group.tree)) == sorted(group.members)
        assert group.exported <= group.members
        for k in group.members:
            assert k in group.exported or graph.computations[k].fusible
            for p in graph.computations[k].before:
                if p in group.members:  # what a kernel reads of its own runs before
                    order = leaves(group.tree)
                    assert order.index(p) < order.index(k)
                else:
                    assert state.clusters.position(home[p]) < state.clusters.position(leader)
    assert sorted(g for b in state.packed.buckets for g in b) == list(range(len(graph.gradients)))


@given(st.data())
def test_moves_keep_states_valid(data: st.DataObject) -> None:
    problem = data.draw(problems())
    state = FusionState(problem)
    check_valid(state)
    for move in data.draw(moves(problem.graph)):
        before = state.copy()
        reason = state.apply(move)
        check_valid(state)
        if reason is not None:
            assert (before.groups, before.packed, before.time) == (state.groups, state.packed, state.time)


@given(problems(8))
@settings(max_examples=30)
def test_what_is_found_is_valid_and_no_worse_than_rules(problem: FusionProblem) -> None:
    everything = [[k for k, c in enumerate(problem.graph.computations) if c.fusible]]
    starts = baselines(problem, everything, cap=64)
    search = BacktrackingSearch(problem, starts.values(), SearchEffort(beta=3, patience=60))
    best = search.run()
    check_valid(best)
    assert search.exhausted
    assert all(search.cost <= apply_moves(problem, found).time.seconds for found in starts.values())
    assert best.bound <= search.cost * (1 + 1e-12)
    assert one_bucket_bound(best) <= search.cost * (1 + 1e-12)


@given(problems(10), st.integers(0, 2**31), st.integers(1, 12))
@settings(max_examples=25)
def test_a_search_that_goes_on_from_a_file_finds_the_same(problem: FusionProblem, seed: int, steps: int) -> None:
    import tempfile

    effort = SearchEffort(beta=3, seed=seed)
    whole, first, second = (BacktrackingSearch(problem, (), effort) for _ in range(3))
    whole.run(steps=20)
    with tempfile.TemporaryDirectory() as folder:
        first.run(steps=steps)
        first.save(Path(folder) / "search.json")
        second.restore(Path(folder) / "search.json")
    second.run(steps=20 - steps)
    assert (whole.steps, whole.evaluated, whole.cost) == (second.steps, second.evaluated, second.cost)
    assert whole.best.groups == second.best.groups
    assert whole.best.packed.buckets == second.best.packed.buckets


def chain(lengths: int = 4) -> FusionProblem:
    computations = tuple(StepOperator(f"c{k}", 1.0, (k - 1,) if k else ()) for k in range(lengths))
    gradients = tuple(GradientTensor(f"g{k}", 1, k) for k in range(lengths))
    graph = TrainingGraph(computations, gradients)
    return FusionProblem(graph, model_of(graph), AllReduceTime(2, 0.01, 1.0))


def test_a_chain_with_dear_calls_is_reduced_at_once() -> None:
    best = BacktrackingSearch(chain(), (), SearchEffort(patience=300)).run()
    assert len(best.packed.buckets) < 4
    assert len(best.groups) < 4


def test_copies_let_a_result_leave_early() -> None:
    # a is read by b and c; the gradient of a waits for neither where b has a copy
    computations = (StepOperator("a", 1.0), StepOperator("b", 8.0, (0,)), StepOperator("c", 8.0, (0,)))
    graph = TrainingGraph(computations, (GradientTensor("g", 8, 0),))
    state = FusionState(FusionProblem(graph, model_of(graph), AllReduceTime(2, 1.0, 0.0)))
    assert state.apply(Move("copy", 0, 1)) is None
    assert sorted(map(sorted, (g.members for g in state.groups.values()))) == [[0], [0, 1], [2]]
    assert state.clusters.predecessors(1) == ()
    assert state.apply(Move("fuse", 0, 1)) == "one of both has a copy of what the other computes"
    assert state.apply(Move("copy", 0, 2)) == "nobody else reads what would be copied"
    assert state.apply(Move("fuse", 0, 2)) is None
    check_valid(state)


def test_files_of_other_searches_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "search.json"
    search = BacktrackingSearch(chain(), (), SearchEffort())
    search.run(steps=3)
    search.save(path)
    with pytest.raises(DaceoptError, match="seed"):
        BacktrackingSearch(chain(), (), SearchEffort(seed=1)).restore(path)
    with pytest.raises(DaceoptError, match="graph"):
        BacktrackingSearch(chain(5), (), SearchEffort()).restore(path)
    path.write_text(path.read_text()[:-20])
    with pytest.raises(DaceoptError, match="no state of a search"):
        BacktrackingSearch(chain(), (), SearchEffort()).restore(path)
    path.write_text(json.dumps({"format": 1}))
    with pytest.raises(DaceoptError, match="no state of a search"):
        BacktrackingSearch(chain(), (), SearchEffort()).restore(path)


@pytest.mark.parametrize("wrong", [{"alpha": 0.9}, {"beta": 0}, {"patience": 0}, {"alpha": float("nan")}])
def test_wrong_efforts_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(DaceoptError, match="expected alpha, beta and patience"):
        SearchEffort(**wrong)  # type: ignore[arg-type]

"""Searches from several seeds at once: the best of what each finds alone."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest

from daceopt.distributed.search.allreduce_time import AllReduceTime
from daceopt.distributed.search.backtracking import BacktrackingSearch, SearchEffort
from daceopt.distributed.search.baselines import apply_moves
from daceopt.distributed.search.fusion_state import FusionProblem
from daceopt.distributed.search.parallel_search import SeededSearch
from daceopt.distributed.search.training_graph import GradientTensor, StepOperator, TrainingGraph
from daceopt.errors import DaceoptError, RunError
from tests.distributed.problems import model_of

EFFORT = SearchEffort(patience=30, seed=3)
SEEDS = 3


def random_problem(seed: int) -> FusionProblem:
    draw, computations = random.Random(seed), []
    for k in range(14):
        before = tuple(sorted(draw.sample(range(k), min(k, 2))))
        computations.append(StepOperator(f"c{k}", draw.randint(1, 9) / 4, before, draw.random() < 0.8))
    gradients = tuple(GradientTensor(f"g{k}", draw.randint(1, 64), draw.randrange(14)) for k in range(6))
    graph = TrainingGraph(tuple(computations), gradients)
    return FusionProblem(graph, model_of(graph), AllReduceTime(4, 0.05, 0.5))


def alone(problem: Any, seed: int) -> float:
    made = BacktrackingSearch(problem, (), SearchEffort(patience=30, seed=seed))
    made.run()
    return made.cost


def test_each_seed_finds_what_it_finds_alone() -> None:
    problem = random_problem(1)
    found = SeededSearch(problem, (), EFFORT).run(SEEDS)
    assert [o.cost for o in found] == [alone(problem, 3 + k) for k in range(SEEDS)]
    for outcome in found:
        assert apply_moves(problem, outcome.moves).time.seconds == outcome.cost and outcome.exhausted
    assert SeededSearch(problem, (), EFFORT).run(SEEDS) == found


def test_each_seed_goes_on_from_a_file_of_its_own(tmp_path: Path) -> None:
    problem, path = random_problem(2), tmp_path / "search.json"
    found = SeededSearch(problem, (), EFFORT, path).run(SEEDS)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["search.json", "search.json.1", "search.json.2"]
    assert SeededSearch(problem, (), EFFORT, path).run(SEEDS) == found
    (tmp_path / "search.json.2").write_text("{}")
    with pytest.raises(DaceoptError, match=r"search.json.2 is no state of a search"):
        SeededSearch(problem, (), EFFORT, path).run(SEEDS)


def test_a_process_that_is_killed_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SeededSearch, "_child", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    with pytest.raises(RunError, match="ended with -9"):
        SeededSearch(random_problem(1), (), EFFORT).run(2)


def test_no_process_is_refused() -> None:
    with pytest.raises(DaceoptError, match="expected one or more"):
        SeededSearch(random_problem(1), (), EFFORT).run(0)

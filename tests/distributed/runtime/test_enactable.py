"""What a search finds can be enacted, and computes what the step computes: whole networks, in float64."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import daceopt
from benchmarks.models.data_parallel import transformer
from daceopt.distributed.runtime.enactment import grouping
from daceopt.distributed.search.allreduce_time import AllReduceTime
from daceopt.distributed.search.backtracking import SearchEffort
from daceopt.distributed.search.baselines import OPERATORS, apply_moves, baselines
from daceopt.distributed.search.fusion_state import FusionProblem, FusionState, Move
from daceopt.distributed.search.program_operators import ProgramOperators, by_roofline
from daceopt.distributed.search.step_capture import CapturedStep, capture
from daceopt.distributed.search.strategy import Strategy
from daceopt.distributed.search.strategy_search import enactable, problem_of, rule_groups, search, several, strategy_of
from daceopt.distributed.search.strategy_state import simulate
from daceopt.distributed.search.training_graph import KernelGroup, Tree, joints, leaves
from daceopt.ir.control.program import Program
from daceopt.ir.nodes.collective import AllReduceStart
from daceopt.passes.recipe import Recipe
from daceopt.passes.runner import Runner
from daceopt.transformations.distributed.operator_grouping import DIRECTIONS, OperatorGrouping, RefusedMerge
from daceopt.transformations.distributed.tensor_fusion import TensorFusion
from tests.distributed.float64 import results
from tests.distributed.problems import moves, problems
from tests.distributed.stepwise import SMALL, TRANSLATOR, of_evaluation

_DROPPING = {**TRANSLATOR, "dropout": 0.1}
NETWORKS = SMALL | {"Transformer with dropout": partial(of_evaluation, transformer, **_DROPPING, layers=1)}


class Searched(NamedTuple):
    """A small network and its step as a problem."""

    model: torch.nn.Module
    step: CapturedStep
    problem: FusionProblem
    groups: list[list[int]]

    def found(self, seed: int) -> Strategy:
        return search(self.problem, self.groups, self.model, SearchEffort(patience=40, seed=seed)).strategy

    def enacted(self, strategy: Strategy) -> Program:
        buckets = TensorFusion(tuple(b.parameters for b in strategy.buckets))
        left = [buckets if isinstance(step, TensorFusion) else step for step in self.step.left]
        program, steps = self.step.program.copy(), (grouping(strategy), *left)
        Runner(Recipe("enacted", steps)).apply(program, steps)
        return program

    def merged(self, seed: int) -> FusionState:
        """Moves at random, from the recipe's kernels or (odd seeds) from none: larger groups, or more copies, than are
        worth it."""
        rules = [] if seed % 2 else baselines(self.problem, self.groups)[OPERATORS]
        draw, state = random.Random(seed), apply_moves(self.problem, rules)
        for _ in range(400):
            state.apply(Move(draw.choice(("fuse", "fuse", "copy")), *draw.choice(self.problem.graph.edges)))
        return state


@cache
def searched(name: str, of_step: bool = False) -> Searched:
    torch._dynamo.reset()
    network = NETWORKS[name]()
    optimizer = torch.optim.SGD(network.model.parameters(), 0.1, momentum=0.9)
    subject = daceopt.training_step(network.model, None, optimizer) if of_step else network.model
    step = capture(subject, network.batches[0], world=2)
    operators = ProgramOperators(step.program)
    problem = problem_of(operators, by_roofline(operators.machine), AllReduceTime.ring(2, 1e9, 5e-5))
    return Searched(network.model, step, problem, rule_groups(step, operators))


def assert_same(program: Program, captured: Program) -> None:
    """Sums of thousands of terms in another order; gradients that are 0 but for rounding."""
    for found, expected in zip(results(program), results(captured), strict=True):
        atol = 1e-13 + 1e-12 * np.abs(expected).max(initial=0.0)
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=atol)


NAMES = [
    pytest.param(name, marks=() if name == "Transformer with dropout" else pytest.mark.breadth) for name in NETWORKS
]


@pytest.mark.parametrize("name", NAMES)
def test_what_is_searched_is_enacted(name: str) -> None:
    subject = searched(name)
    strategy = subject.found(seed=0)
    assert strategy.groups and strategy == subject.found(seed=0)
    assert_same(subject.enacted(strategy), subject.step.program)


@pytest.mark.parametrize("name", NAMES)
def test_what_the_search_allows_is_enacted(name: str) -> None:
    """Without a repair: it has the rule of what enacts."""
    subject = searched(name)
    for seed in range(4):
        state = subject.merged(seed)
        strategy = strategy_of(state, subject.model)
        program = subject.step.program.copy()
        done, refused = grouping(strategy).attempt(program)
        assert not refused and len(done) == len(strategy.groups)
        assert set(several(simulate(subject.problem, strategy, []))) == set(several(state))
        assert_same(program, subject.step.program)
    assert any(g.duplicated for g in strategy.groups)


def runs_before(program: Program) -> list[set[str]]:
    """What is computed before each reduction starts, as strategies call it."""
    done: set[str] = set()
    before: list[set[str]] = []
    for direction, graph in zip(DIRECTIONS, program.directions()):
        for node in graph.nodes():
            if isinstance(node, AllReduceStart):
                before.append(set(done))
            done |= {f"{direction}/{name}" for name in graph.outputs_of(node) if name is not None}
    return before


def simulated_before(state: FusionState) -> list[set[str]]:
    """The same of what is simulated: operators whose results others read."""
    graph = state.problem.graph
    slot = {leader: k for k, leader in enumerate(state.order())}
    place = {k: slot[leader] for leader, group in state.groups.items() for k in group.exported}
    last = (max(slot[state.clusters.leader(graph.gradients[g].producer)] for g in b) for b in state.ready_order())
    return [{graph.computations[k].name for k, at in place.items() if at <= ready} for ready in last]


@pytest.mark.parametrize("of_step", [True, False])
def test_the_order_that_is_simulated_is_enacted(of_step: bool) -> None:
    """Buckets start in the same order, and behind the same operators: those that are in both programs by name."""
    subject = searched("Transformer with dropout", of_step)
    for seed in (0, 1):
        state = subject.merged(seed)
        draw = random.Random(seed)
        for _ in range(12):
            order = state.ready_order()
            k = draw.randrange(len(order) - 1)
            state.apply(Move("combine", order[k][0], order[k + 1][0]))
        strategy = strategy_of(state, subject.model, of_step)
        assert simulate(subject.problem, strategy, []).ready_order() == state.ready_order()
        enacted, simulated = runs_before(subject.enacted(strategy)), simulated_before(state)
        assert len(enacted) == len(simulated) > 2
        common = set.union(*enacted) & set.union(*simulated)
        assert len(common) > 30
        for own, expected in zip(enacted, simulated, strict=True):
            assert own & common == expected & common


def test_merges_in_another_order_are_refused_and_named() -> None:
    """Those of the Transformer's normalizations are possible in some orders only."""
    subject = searched("Transformer with dropout")
    groups = several(subject.merged(2))
    others = [group._replace(tree=folded(leaves(group.tree))) for group in groups]
    refused = subject.problem.model.refusals(others)
    assert refused and set(refused) <= {tree for group in others for tree in joints(group.tree)}
    with pytest.raises(RefusedMerge, match="cannot be one kernel"):
        OperatorGrouping(tuple(map(subject.problem.graph.name, others))).run_program(subject.step.program.copy())


def folded(members: list[int]) -> Tree:
    """One after another, the last first."""
    tree: Tree = members[-1]
    for k in reversed(members[:-1]):
        tree = (k, tree)
    return tree


@given(problems(), st.data())
def test_what_is_refused_is_left_out(problem: FusionProblem, data: st.DataObject) -> None:
    """Kernels whose first and last computation are apart by a multiple of three, whichever way they are made."""

    def is_refused(tree: Tree) -> bool:
        return (leaves(tree)[0] + leaves(tree)[-1]) % 3 == 0

    def refused(groups: Sequence[KernelGroup]) -> set[Tree]:
        return {tree for group in groups for tree in joints(group.tree) if is_refused(tree)}

    strict = problem._replace(model=replace(problem.model, refusals=refused))
    candidates = [data.draw(moves(problem.graph)) for _ in range(3)]
    state = enactable(strict, candidates)
    assert not refused(several(state))
    least = min(apply_moves(problem, made).time.seconds for made in candidates)
    free = [s for made in candidates if not refused(several(s := apply_moves(problem, made)))]
    assert all(state.time.seconds <= s.time.seconds for s in free)
    assert enactable(problem, candidates).time.seconds == least

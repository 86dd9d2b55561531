"""Groups as a strategy names them: what they compute is what the graph computed, to the last bits of float64."""

from __future__ import annotations

import random
from functools import cache

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from daceopt.distributed.runtime.enactment import enacting
from daceopt.distributed.search.allreduce_time import AllReduceTime
from daceopt.distributed.search.fusion_state import FusionState, Move
from daceopt.distributed.search.program_operators import ProgramOperators, by_roofline, is_operator
from daceopt.distributed.search.step_capture import CapturedStep, capture
from daceopt.distributed.search.strategy_search import problem_of, strategy_of
from daceopt.distributed.search.training_graph import KernelGroup
from daceopt.errors import DaceoptError, StrategyError
from daceopt.ir.control.program import Program
from daceopt.ir.kernel.kernel_node import KernelNode
from daceopt.passes.runner import Runner
from daceopt.transformations.distributed.operator_grouping import OperatorGrouping
from tests.distributed.float64 import results


class Branches(nn.Module):
    """A result with several readers, a normalization, views, a softmax, a reduction of a broadcast."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8)
        self.scale = nn.Parameter(torch.randn(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.first(x))
        gate = torch.sigmoid(hidden * self.scale)
        mixed = self.norm(hidden * gate + self.second(hidden))
        rows = functional.softmax(mixed, -1) * gate.exp()
        return (rows.transpose(0, 1).reshape(-1) ** 2).mean() + hidden.abs().sum() * 0.1


@cache
def step() -> CapturedStep:
    torch.manual_seed(0)
    return capture(Branches(), (torch.randn(5, 6),))


def operators() -> ProgramOperators:
    return ProgramOperators(step().program)


def assert_same(program: Program) -> None:
    for found, expected in zip(results(program), results(step().program), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-13)


def random_state(seed: int, count: int, methods: tuple[str, ...] = ("fuse", "fuse", "copy")) -> FusionState:
    found = operators()
    problem = problem_of(found, by_roofline(found.machine), AllReduceTime.ring(2, 1e9))
    state, draw = FusionState(problem), random.Random(seed)
    for _ in range(count):
        state.apply(Move(draw.choice(methods), *draw.choice(problem.graph.edges)))  # type: ignore[arg-type]
    return state


@pytest.mark.parametrize("seed", range(8))
def test_random_groups_compute_the_same(seed: int) -> None:
    state = random_state(seed, 40)
    strategy = strategy_of(state, Branches())
    assert strategy.groups
    program = step().program.copy()
    Runner(enacting(strategy)).apply(program, [enacting(strategy).resolve()[len(before())]])
    for graph in program.directions():
        graph.validate()
    assert_same(program)
    operators = [n for g in program.directions() for n in g.nodes() if is_operator(g, n)]
    assert len(operators) == len(state.groups) - 1  # what stands between the directions is no node


def test_what_is_computed_late_joins_nothing_that_is_computed_early() -> None:
    found = operators()
    single = KernelGroup.single
    pairs = [(a, b) for a, b in found.graph.edges if found.why_not(single(a), single(b), False) is None]
    assert pairs
    program = step().program.copy()
    for graph in program.directions():
        graph.apart = {a: k % 2 == 0 for k, n in enumerate(graph.nodes()) for a in graph.outputs_of(n) if a is not None}
    apart = ProgramOperators(program)
    said = [apart.why_not(single(a), single(b), False) for a, b in pairs]
    refused = "one of both is computed late, for the sake of memory"
    assert refused in said and all(s in (None, refused) for s in said)
    for (a, b), reason in zip(pairs, said):
        sides = [next(iter(apart._sides(single(k)))) for k in (a, b)]
        assert (reason == refused) is (sides[0] != sides[1])


def before() -> tuple[object, ...]:
    from daceopt.distributed.search.step_capture import divide

    return divide("disco")[0]


def test_some_of_them_have_copies() -> None:
    groups = [g for seed in range(8) for g in strategy_of(random_state(seed, 40), Branches()).groups]
    assert sum(bool(g.duplicated) for g in groups) >= 3


def test_the_whole_recipe_runs_behind_it() -> None:
    strategy = strategy_of(random_state(3, 30), Branches())
    recipe = enacting(strategy)
    program = step().program.copy()
    Runner(recipe).apply(program, recipe.resolve()[len(before()) :])
    assert_same(program)


def test_a_strategy_without_groups_leaves_the_recipe_alone() -> None:
    strategy = strategy_of(random_state(0, 0), Branches())
    assert strategy.groups == ()
    assert any(s.name == "map-fusion" for s in enacting(strategy).resolve())


def grouped(*names: str, merges: tuple[tuple[int, int], ...] = ()) -> OperatorGrouping:
    return OperatorGrouping(((names, (), merges),))


def test_names_that_no_graph_has_are_refused() -> None:
    program = step().program
    known = next(c.name for c in operators().graph.computations if c.fusible)
    for wrong in (grouped("forward/nothing_7", known), grouped(known, "backward/nothing_7"), grouped(known, "x/y")):
        with pytest.raises(StrategyError, match="no kernel of the"):
            wrong.run_program(program.copy())
    with pytest.raises(StrategyError, match="no direction"):
        grouped("sideways/x", "sideways/y").run_program(program.copy())


def test_library_nodes_are_refused() -> None:
    program = step().program
    library = next(n for n in program.forward.nodes() if not isinstance(n, KernelNode))
    name = f"forward/{program.forward.outputs_of(library)[0]}"
    with pytest.raises(StrategyError, match=f"{name}, which is no kernel"):
        grouped(name, name).run_program(program.copy())


def test_groups_that_would_close_a_cycle_are_refused() -> None:
    graph = operators().graph
    names = [c.name for c in graph.computations if c.fusible and c.name.startswith("forward/")]
    with pytest.raises(StrategyError, match="cannot be one kernel"):
        grouped(names[0], names[-1]).run_program(step().program.copy())


def test_only_steps_of_one_graph_have_strategies() -> None:
    class Breaks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x * self.weight
            torch._dynamo.graph_break()
            return (y + 1).sum()

    with pytest.raises(DaceoptError, match="a step of one graph, and this one has 2"):
        capture(Breaks(), (torch.randn(3),))


def test_a_step_without_gradients_is_refused() -> None:
    with pytest.raises(DaceoptError, match="gradient"):
        found = capture(nn.ReLU(), (torch.randn(3),))
        ProgramOperators(found.program)

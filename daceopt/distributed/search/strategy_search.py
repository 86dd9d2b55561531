"""From a module to its strategy: what is searched, what is compared, and what comes out."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from daceopt.distributed.search.backtracking import BacktrackingSearch, SearchEffort
from daceopt.distributed.search.baselines import apply_moves, baselines, one_bucket_bound
from daceopt.distributed.search.fusion_state import FusionProblem, FusionState, Move
from daceopt.distributed.search.parallel_search import SeededSearch
from daceopt.distributed.search.step_simulator import StepSimulator, StepTime
from daceopt.distributed.search.strategy import Bucket, Identity, OperatorGroup, Strategy
from daceopt.distributed.search.training_graph import KernelGroup, Tree
from daceopt.passes.transform import Site

if TYPE_CHECKING:
    from torch import nn

    from daceopt.distributed.search.allreduce_time import AllReduceTime
    from daceopt.distributed.search.program_operators import Estimate, ProgramOperators
    from daceopt.distributed.search.step_capture import CapturedStep


@dataclass(frozen=True)
class SearchOutcome:
    """``time`` and what rules make of the same step (``rules``), as simulated; ``bound``: full overlap with the
    kernels that were found and one call for all gradients; ``seconds``: of the search, ``evaluated`` candidates."""

    strategy: Strategy
    state: FusionState
    rules: dict[str, StepTime]
    bound: float
    seconds: float
    evaluated: int
    exhausted: bool

    @property
    def time(self) -> StepTime:
        return self.state.time

    @property
    def best_rule(self) -> str:
        """The rule that makes the shortest step."""
        return min(self.rules, key=lambda name: self.rules[name].seconds)

    @property
    def gain(self) -> float:
        """(T_rule - T_found) / T_found, of the best rule (DisCo, section 6.2)."""
        return self.rules[self.best_rule].seconds / self.time.seconds - 1 if self.time.seconds else 0.0

    @property
    def possible(self) -> float:
        """The same with full overlap in the place of what was found."""
        return self.rules[self.best_rule].seconds / self.bound - 1 if self.bound else 0.0

    def __str__(self) -> str:
        rows = [*self.rules.items(), ("searched", self.time)]
        lines = [f"  {name:16} {_ms(t.seconds)}  {_ms(t.computation)}  {_ms(t.communication)}" for name, t in rows]
        head = f"  {'':16} {'step':>11}  {'compute':>11}  {'reduce':>11}"
        ended = "no better one for long" if self.exhausted else "the time was over"
        return "\n".join(
            [
                head,
                *lines,
                f"  {'full overlap':16} {_ms(self.bound)}",
                f"  {100 * self.gain:.1f} % faster than {self.best_rule} (full overlap: {100 * self.possible:.1f} %); "
                f"{self.evaluated} candidates in {self.seconds:.1f} s, {ended}",
                f"  {len(self.strategy.groups)} groups of operators, {len(self.strategy.buckets)} buckets",
            ]
        )


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:8.3f} ms"


def rule_groups(step: CapturedStep, operators: ProgramOperators) -> list[list[int]]:
    """What the recipe's own fusion makes one kernel."""
    position = {id(p.node): k for k, p in enumerate(operators.places) if p is not None}
    sites = (s for graph in step.program.directions() for s in step.fusion.match(graph) if isinstance(s, Site))
    return [[position[id(n)] for n in site.nodes if id(n) in position] for site in sites]


def problem_of(
    operators: ProgramOperators, estimate: Estimate, reduction: AllReduceTime, slowdowns: Sequence[float] = (1.0,)
) -> FusionProblem:
    """The kernels and buckets of a program as a problem."""
    return FusionProblem(
        operators.estimate(estimate), operators.model(estimate), reduction, StepSimulator(tuple(slowdowns))
    )


def search(
    problem: FusionProblem,
    groups: Sequence[Sequence[int]],
    module: nn.Module,
    effort: SearchEffort | None = None,
    budget: float | None = None,
    resume: Path | None = None,
    of_step: bool = False,
    processes: int = 1,
) -> SearchOutcome:
    """Search a strategy for ``module``, or (``of_step``) for a training step of it. ``groups``: what a recipe fuses;
    ``resume``: a file to go on from where there is one, and to which the search is written; ``processes``: search from
    as many seeds at once, each for the whole ``budget``; the least cost wins, of equal ones that of the first seed.

    What is found can be enacted: candidates of which the program refuses a part go on without that."""
    start = time.perf_counter()
    rules = baselines(problem, groups)
    rest = None if budget is None else max(0.0, budget - (time.perf_counter() - start))
    outcomes = SeededSearch(problem, list(rules.values()), effort or SearchEffort(), resume).run(processes, rest)
    state = enactable(problem, [*(outcome.moves for outcome in outcomes), *rules.values()])
    times = {name: apply_moves(problem, moves).time for name, moves in rules.items()}
    spent = time.perf_counter() - start
    strategy = strategy_of(state, module, of_step)
    evaluated, exhausted = sum(o.evaluated for o in outcomes), all(o.exhausted for o in outcomes)
    return SearchOutcome(strategy, state, times, one_bucket_bound(state), spent, evaluated, exhausted)


def best_strategies(
    problem: FusionProblem, groups: Sequence[Sequence[int]], module: nn.Module, seconds: float, of_step: bool = False
) -> list[Strategy]:
    """What a search of so many ``seconds`` finds from each of its starts, as simulated the best first; behind each the
    same buckets with the kernels of the recipe's own fusion. All of them can be enacted."""
    search = BacktrackingSearch(problem, list(baselines(problem, groups).values()))
    search.run(seconds)
    strategies: dict[str, Strategy] = {}
    for moves in search.best_of_starts():
        strategy = strategy_of(enactable(problem, [moves]), module, of_step)
        for one in (strategy, replace(strategy, groups=())):
            strategies.setdefault(one.digest(), one)
    return list(strategies.values())


def enactable(problem: FusionProblem, candidates: Iterable[Sequence[Move]]) -> FusionState:
    """The state of least cost, of the first candidate among equals, in which nothing is refused: moves that are refused
    when all kernels of a candidate are made are left out of it."""
    states = [(list(moves), apply_moves(problem, moves)) for moves in candidates]
    while True:
        k = min(range(len(states)), key=lambda n: states[n][1].time.seconds)
        moves, state = states[k]
        refused = problem.model.refusals(several(state))
        if not refused:
            return state
        allowed = _without(problem, moves, refused)
        states[k] = allowed, apply_moves(problem, allowed)


def _without(problem: FusionProblem, moves: Iterable[Move], refused: Collection[Tree]) -> list[Move]:
    """Those of the moves that are possible once none is made that makes one of the ``refused`` kernels."""
    state = FusionState(problem)
    allowed: list[Move] = []
    for move in moves:
        if state.apply(move) is not None:
            continue
        if move.method != "combine" and state.groups[state.clusters.leader(move.second)].tree in refused:
            state = apply_moves(problem, allowed)
        else:
            allowed.append(move)
    return allowed


def strategy_of(state: FusionState, module: nn.Module, of_step: bool = False) -> Strategy:
    """What is enacted. Parameters without a gradient are reduced last, in buckets of their own."""
    problem = state.problem
    graph, identity = problem.graph, Identity.of(module, problem.reduction.world, problem.graph.fingerprint)
    buckets = [Bucket(tuple(graph.gradients[g].name for g in bucket)) for bucket in state.ready_order()]
    reduced = {g.name for g in graph.gradients}
    unused: dict[str, list[str]] = {}
    for weight in identity.weights:
        if weight.name not in reduced:
            unused.setdefault(weight.dtype, []).append(weight.name)
    buckets += [Bucket(tuple(names)) for names in unused.values()]
    groups = tuple(OperatorGroup(*graph.name(group)) for group in several(state))
    return Strategy(identity, tuple(buckets), groups, of_step=of_step)


def several(state: FusionState) -> list[KernelGroup]:
    """The groups of several operators, in the order of the step."""
    groups = (state.groups[leader] for leader in sorted(state.groups, key=state.clusters.position))
    return [group for group in groups if len(group.members) > 1]

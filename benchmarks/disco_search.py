"""Joint fusion of operators and tensors searched for six networks, in the simulator (Yi et al., DisCo, 2022).

Kernels are estimated for one thread of this machine, reductions by a ring over links of a bandwidth and 50 us.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.harness import OURS, Budget, Result, at_most, case
from benchmarks.models.data_parallel import STEPS
from daceopt.cost.rates import rates
from daceopt.distributed import step_times
from daceopt.distributed.allreduce_time import AllReduceTime
from daceopt.distributed.backtracking import BacktrackingSearch, SearchEffort
from daceopt.distributed.baselines import OPERATORS, baselines, moved, one_bucket_bound
from daceopt.distributed.estimator_training import known
from daceopt.distributed.fusion_state import METHODS, FusionProblem, FusionState, Method, Move
from daceopt.distributed.program_operators import ProgramOperators
from daceopt.distributed.step_capture import capture
from daceopt.distributed.strategy_search import problem_of, rule_groups

LATENCY = 50e-6
LINKS = ((4, 1e9), (4, 10e9), (4, 25e9), (2, 10e9), (64, 10e9), (1024, 10e9))
"""(workers, bit/s of each link)"""
PAPER = {"VGG-19": 0.101, "ResNet-50": 0.125, "Transformer": 0.267, "RNNLM": 0.086, "BERT": 0.185, "Reformer": 0.145}
"""The larger speed-up of the two clusters (table 1)."""
MOST_SECONDS = 120.0


@dataclass(frozen=True)
class Prepared:
    """What is known of a network, whatever the links are; ``said``: of which of its times are measured."""

    operators: ProgramOperators
    groups: list[list[int]]
    model: Any
    said: str = "library calls by their roofline, kernels as estimated"

    def problem(self, world: int, bandwidth: float) -> FusionProblem:
        return self.model._replace(reduction=AllReduceTime.ring(world, bandwidth, LATENCY))


def prepared(subject: Any, batch: Sequence[Any], world: int = 4, measured: bool = False) -> Prepared:
    """Captured with reductions; which workers they are between changes no kernel but by how many they are.

    ``subject``: a module that computes its loss, or a training step of one. ``measured``: library calls, and kernels of
    the recipe's own fusion, take what they take here; kernels that were not measured what is estimated.
    """
    machine = rates().of_cores(1)
    captured = capture(subject, batch, world=world)
    times = step_times.measured(captured, kernels=True) if measured else step_times.StepTimes({}, [])
    operators = ProgramOperators(captured.program, machine, times.calls)
    estimate, reduction = known(machine).estimate(machine), AllReduceTime.ring(world, 1e9)
    groups = rule_groups(captured, operators)
    problem = problem_of(operators, estimate, reduction)
    if measured:
        fused = moved(problem, baselines(problem, groups)[OPERATORS]).groups.values()
        found = step_times.of_groups(times.kernels, operators, fused, estimate)
        problem = problem_of(operators, step_times.known_first(found, estimate), reduction)
        said = f"{len(times.calls)} library calls and {len(times.kernels)} kernels as measured alone, others estimated"
        return Prepared(operators, groups, problem, said)
    return Prepared(operators, groups, problem)


@case
def disco_search(budget: Budget) -> Iterator[Result]:
    """Table 1 and figures 6, 7 and 10, simulated: steps by rules and as searched, and the time of the search."""
    torch.manual_seed(0)
    for name, make in STEPS.items():
        torch._dynamo.reset()
        start = time.perf_counter()
        found = prepared(*make())
        spent = time.perf_counter() - start
        size = {"operators": len(found.operators.graph.computations), "gradients": len(found.operators.graph.gradients)}
        yield Result(name, "captured", "s", {OURS: spent}, notes=size)
        for world, bandwidth in LINKS:
            yield from _searched(name, found, world, bandwidth, budget)
        yield from _methods(name, found, budget)
        yield from _parameters(name, found, budget)
        yield _simulations(name, found)


def _searched(name: str, found: Prepared, world: int, bandwidth: float, budget: Budget) -> Iterator[Result]:
    problem = found.problem(world, bandwidth)
    start = time.perf_counter()
    rules = baselines(problem, found.groups)
    search = BacktrackingSearch(problem, rules.values(), SearchEffort())
    best = search.run(seconds=6 * budget.seconds)
    spent = time.perf_counter() - start
    times = {rule: moved(problem, moves).time for rule, moves in rules.items()}
    values = {OURS: 1e3 * search.cost, **{rule: 1e3 * t.seconds for rule, t in times.items()}}
    values["full overlap"] = 1e3 * one_bucket_bound(best)
    least = min(times.values()).seconds
    gain, paper = least / search.cost - 1, PAPER[name]
    notes = {
        "gain": f"{gain:.1%}",
        "possible": f"{1e3 * least / values['full overlap'] - 1:.1%}",
        "compute / reduce": f"{best.time.computation / best.time.communication:.2f}",
        "candidates": search.evaluated,
    }
    link = f"{world} workers, {bandwidth / 1e9:g} Gbit/s"
    yield Result(name, link, "ms", values, f"gain of the paper, {paper:.1%}", gain >= paper, notes)
    yield Result(name, f"search, {link}", "s", {OURS: spent}, *at_most(spent, MOST_SECONDS, "two minutes"))


def _run(problem: FusionProblem, starts: Sequence[Sequence[Move]], effort: SearchEffort, budget: Budget) -> float:
    search = BacktrackingSearch(problem, starts, effort)
    search.run(seconds=2 * budget.seconds)
    return 1e3 * search.cost


def _methods(name: str, found: Prepared, budget: Budget) -> Iterator[Result]:
    """Figure 10: methods added one by one, from nothing fused."""
    problem = found.problem(4, 10e9)
    values = {"none": 1e3 * FusionState(problem).time.seconds}
    used: tuple[Method, ...] = ()
    for method in METHODS:
        used = (*used, method)
        values[f"+ {method}"] = _run(problem, (), SearchEffort(methods=used), budget)
    values[OURS] = values.pop(f"+ {METHODS[-1]}")
    yield Result(name, "methods (figure 10), 4 workers, 10 Gbit/s", "ms", values)


def _parameters(name: str, found: Prepared, budget: Budget) -> Iterator[Result]:
    """Tables 3 and 4."""
    problem = found.problem(4, 10e9)
    starts = list(baselines(problem, found.groups).values())
    alphas = {f"alpha {a:g}": _run(problem, starts, SearchEffort(alpha=a), budget) for a in (1.0, 1.05, 1.1)}
    yield Result(name, "alpha (table 3), 4 workers, 10 Gbit/s", "ms", alphas)
    betas = {f"beta {b}": _run(problem, starts, SearchEffort(beta=b), budget) for b in (1, 5, 10, 30)}
    yield Result(name, "beta (table 4), 4 workers, 10 Gbit/s", "ms", betas)


def _simulations(name: str, found: Prepared) -> Result:
    """Steps simulated per second when kernels changed since the last one."""
    state, count = FusionState(found.problem(4, 10e9)), 500
    start = time.process_time()
    for _ in range(count):
        state.__dict__.pop("_arrays", None)
        state.time  # noqa: B018
    rate = count / (time.process_time() - start)
    return Result(name, "simulated", "steps/s", {OURS: rate}, "10,000 a second", rate >= 1e4)

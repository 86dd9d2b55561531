"""Joint fusion of operators and tensors searched for six networks, in the simulator (Yi et al., DisCo, 2022).

Kernels are estimated for one thread of this machine, reductions by a ring over links of a bandwidth and 50 us.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from benchmarks.harness import OURS, Budget, Result, at_most, case
from benchmarks.models.data_parallel import STEPS
from daceopt.cost.rates import rates
from daceopt.distributed.search.allreduce_time import AllReduceTime
from daceopt.distributed.search.backtracking import BacktrackingSearch, SearchEffort
from daceopt.distributed.search.baselines import apply_moves, baselines, one_bucket_bound
from daceopt.distributed.search.estimator_training import load
from daceopt.distributed.search.fusion_state import METHODS, FusionProblem, FusionState, Method, Move
from daceopt.distributed.search.step_capture import capture
from daceopt.distributed.search.strategy_search import enactable
from daceopt.distributed.search.timed_step import TimedStep, time_step

LATENCY = 50e-6
LINKS = ((4, 1e9), (4, 10e9), (4, 25e9), (2, 10e9), (64, 10e9), (1024, 10e9))
"""(workers, bit/s of each link)"""
PAPER = {"VGG-19": 0.101, "ResNet-50": 0.125, "Transformer": 0.267, "RNNLM": 0.086, "BERT": 0.185, "Reformer": 0.145}
"""The larger speed-up of the two clusters (table 1)."""
MOST_SECONDS = 120.0


def prepare(subject: Any, batch: Sequence[Any], world: int = 4, measured: bool = False) -> TimedStep:
    """Captured with reductions; which workers they are between changes no kernel but by how many they are.

    ``subject``: a module that computes its loss, or a training step of one. ``measured``: of ``time_step``.
    """
    machine, reduction = rates().of_cores(1), AllReduceTime.ring(world, 1e9)
    estimate = load(machine).estimate(machine)
    return time_step(capture(subject, batch, world=world), estimate, reduction, measured=measured)


def between(step: TimedStep, world: int, bandwidth: float) -> FusionProblem:
    """The problem of workers that are linked like this."""
    return step.problem._replace(reduction=AllReduceTime.ring(world, bandwidth, LATENCY))


@case
def disco_search(budget: Budget) -> Iterator[Result]:
    """Table 1 and figures 6, 7 and 10, simulated: steps by rules and as searched, and the time of the search."""
    torch.manual_seed(0)
    for name, make in STEPS.items():
        torch._dynamo.reset()
        start = time.perf_counter()
        step = prepare(*make())
        spent = time.perf_counter() - start
        size = {"operators": len(step.operators.graph.computations), "gradients": len(step.operators.graph.gradients)}
        yield Result(name, "captured", "s", {OURS: spent}, notes=size)
        for world, bandwidth in LINKS:
            yield from _search(name, step, world, bandwidth, budget)
        yield from _methods(name, step, budget)
        yield from _parameters(name, step, budget)
        yield _simulations(name, step)


def _search(name: str, step: TimedStep, world: int, bandwidth: float, budget: Budget) -> Iterator[Result]:
    problem = between(step, world, bandwidth)
    start = time.perf_counter()
    rules = baselines(problem, step.groups)
    search = BacktrackingSearch(problem, rules.values(), SearchEffort())
    search.run(seconds=6 * budget.seconds)
    best = enactable(problem, [search.best_moves, *rules.values()])
    spent = time.perf_counter() - start
    times = {rule: apply_moves(problem, moves).time for rule, moves in rules.items()}
    values = {OURS: 1e3 * best.time.seconds, **{rule: 1e3 * t.seconds for rule, t in times.items()}}
    values["full overlap"] = 1e3 * one_bucket_bound(best)
    least = min(times.values()).seconds
    gain, paper = least / best.time.seconds - 1, PAPER[name]
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


def _methods(name: str, step: TimedStep, budget: Budget) -> Iterator[Result]:
    """Figure 10: methods added one by one, from nothing fused."""
    problem = between(step, 4, 10e9)
    values = {"none": 1e3 * FusionState(problem).time.seconds}
    used: tuple[Method, ...] = ()
    for method in METHODS:
        used = (*used, method)
        values[f"+ {method}"] = _run(problem, (), SearchEffort(methods=used), budget)
    values[OURS] = values.pop(f"+ {METHODS[-1]}")
    yield Result(name, "methods (figure 10), 4 workers, 10 Gbit/s", "ms", values)


def _parameters(name: str, step: TimedStep, budget: Budget) -> Iterator[Result]:
    """Tables 3 and 4."""
    problem = between(step, 4, 10e9)
    starts = list(baselines(problem, step.groups).values())
    alphas = {f"alpha {a:g}": _run(problem, starts, SearchEffort(alpha=a), budget) for a in (1.0, 1.05, 1.1)}
    yield Result(name, "alpha (table 3), 4 workers, 10 Gbit/s", "ms", alphas)
    betas = {f"beta {b}": _run(problem, starts, SearchEffort(beta=b), budget) for b in (1, 5, 10, 30)}
    yield Result(name, "beta (table 4), 4 workers, 10 Gbit/s", "ms", betas)


def _simulations(name: str, step: TimedStep) -> Result:
    """Steps simulated per second when kernels changed since the last one."""
    state, count = FusionState(between(step, 4, 10e9)), 500
    start = time.process_time()
    for _ in range(count):
        for derived in ("_as_captured", "_enacted"):
            state.__dict__.pop(derived, None)
        state.time  # noqa: B018
    rate = count / (time.process_time() - start)
    return Result(name, "simulated", "steps/s", {OURS: rate}, "10,000 a second", rate >= 1e4)

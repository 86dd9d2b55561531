"""A captured step as the problem of fusing it, with what it consists of timed on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from daceopt.cost.rates import rates
from daceopt.distributed.search import step_times
from daceopt.distributed.search.baselines import OPERATORS, apply_moves, baselines
from daceopt.distributed.search.fusion_state import FusionProblem
from daceopt.distributed.search.program_operators import Estimate, ProgramOperators
from daceopt.distributed.search.strategy_search import problem_of, rule_groups

if TYPE_CHECKING:
    from daceopt.distributed.search.allreduce_time import AllReduceTime
    from daceopt.distributed.search.step_capture import CapturedStep


class TimedStep(NamedTuple):
    """``groups``: what the recipe's own fusion makes one kernel; ``said``: which times of ``problem`` are measured."""

    operators: ProgramOperators
    groups: list[list[int]]
    problem: FusionProblem
    said: str


def time_step(
    step: CapturedStep,
    estimate: Estimate,
    reduction: AllReduceTime,
    slowdowns: Sequence[float] = (1.0,),
    cores: int = 1,
    measured: bool = True,
) -> TimedStep:
    """Library calls and the kernels of the recipe's own fusion take what they take on ``cores`` of this machine; other
    kernels what ``estimate`` says. Not ``measured``: calls what the machine's rates say, and all kernels as estimated.

    Raises BuildError where the compiler fails.
    """
    machine = rates().of_cores(cores)
    if not measured:
        operators = ProgramOperators(step.program, machine)
        problem = problem_of(operators, estimate, reduction, slowdowns)
        source = "library calls by their roofline, kernels as estimated"
        return TimedStep(operators, rule_groups(step, operators), problem, source)
    times = step_times.measure(step, cores, kernels=True)
    operators = ProgramOperators(step.program, machine, times.calls)
    groups = rule_groups(step, operators)
    plain = problem_of(operators, estimate, reduction, slowdowns)
    fused = apply_moves(plain, baselines(plain, groups)[OPERATORS]).groups.values()
    group_seconds = step_times.of_groups(times.kernels, operators, fused, estimate)
    problem = problem_of(operators, step_times.prefer_known(group_seconds, estimate), reduction, slowdowns)
    source = f"{len(times.calls)} library calls and {len(times.kernels)} kernels as measured alone, others estimated"
    return TimedStep(operators, groups, problem, source)

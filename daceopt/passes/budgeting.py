"""A recipe with a memory budget: run until what it makes of a program, as that will be built, fits."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass

from daceopt.codegen.working_memory import WorkingMemory, plan_memory
from daceopt.errors import MemoryBudgetError
from daceopt.ir.control.program import Program
from daceopt.passes import memory_budget
from daceopt.passes.recipe import Recipe
from daceopt.passes.runner import Runner
from daceopt.passes.step import Step
from daceopt.passes.transform import DIFFERENTIATE, Transformation

Steps = tuple[Transformation, ...]

logger = logging.getLogger("daceopt.recipe")

TRIES = 5
LEAST = 1  # bytes: what is asked for to see what is possible
_LESS = 0.85
_MORE = 1.25
_TIGHT = 0.9  # of the budget: a plan that leaves more was asked for too little


@dataclass
class _Attempt:
    """What the recipe made of a program for a budget of ``target`` bytes."""

    target: int
    program: Program
    runner: Runner
    memory: WorkingMemory

    @property
    def said(self) -> tuple[str, ...]:
        """What became of the differentiation."""
        return tuple(s for step in self.runner.history if step.level == DIFFERENTIATE for s in step.sites)


def run(recipe: Recipe, program: Program, verify: str | None) -> tuple[Program, list[Step], str]:
    """The program, the steps that led to it, and what became of the budget.

    The step that differentiates plans with nodes that are not fused yet; memory is planned again behind all steps, and
    where that is more than the budget, or far less, the recipe runs again with another target, at most ``TRIES`` times.
    Raises MemoryBudgetError with the least that was found possible, and the arrays that hold it.
    """
    gradients = program.gradients
    assert gradients is not None
    budget = memory_budget.resolve(recipe.budget or 0, gradients.reference)
    runner, (before, after, schedules) = Runner(recipe, verify), _parts(recipe)
    runner.apply(program, before)
    attempts: list[_Attempt] = []
    for target in _targets(budget, attempts):
        twin, own = program.copy(), Runner(recipe, verify)
        own.apply(twin, [*recipe.within(target).resolve()[len(before) : len(before) + 1], *after])
        attempts.append(_Attempt(target, twin, own, plan_memory(twin, gradients.sizes)))
    fitting = [a for a in attempts if a.memory.peak <= budget]
    if not fitting:
        raise MemoryBudgetError(_refusal(recipe, budget, min(attempts, key=lambda a: a.memory.peak).memory))
    best = max(fitting, key=lambda a: a.target)
    best.runner.apply(best.program, schedules)
    history = [*runner.history, *best.runner.history]
    return best.program, history, f"memory: {best.memory.peak} of {budget} bytes; {'; '.join(best.said)}"


def _parts(recipe: Recipe) -> tuple[Steps, Steps, Steps]:
    """The steps before differentiation, those after it, and of these the last that only say how loops run."""
    steps = recipe.resolve()
    at = next(k for k, step in enumerate(steps) if step.level == DIFFERENTIATE)
    after = steps[at + 1 :]
    count = next((k for k, step in enumerate(reversed(after)) if step.changes_dataflow), len(after))
    return steps[:at], after[: len(after) - count], after[len(after) - count :]


def _targets(budget: int, attempts: list[_Attempt]) -> Iterator[int]:
    """What to ask for next, from what became of the last: more while there is room, less while there is none, and in
    the end the least."""
    low, high, target = 0, 2 * budget, budget
    for k in range(TRIES):
        yield target
        latest = attempts[-1]
        peak = latest.memory.peak
        if peak <= budget:
            low = target
        else:
            high = target
        # model and plan differ by about as much as last time; where that changed nothing, by more
        settled = len(attempts) > 1 and attempts[-2].memory == latest.memory
        logger.info("asked for %d bytes, planned %d", target, peak)
        if (peak <= budget and (peak >= _TIGHT * budget or settled or k > 1)) or target == LEAST:
            return
        target += budget - peak if peak <= budget else int(_MORE * (budget - peak))
        target = int(_LESS * latest.target) if settled else target
        target = LEAST if low == 0 and k == TRIES - 2 else min(max(target, low + 1), high - 1)


def _refusal(recipe: Recipe, budget: int, least: WorkingMemory) -> str:
    held = ", ".join(f"{name} ({size} bytes)" for name, size in least.holders())
    return (
        f"memory budget {recipe.budget!r}: {budget} bytes; the least that was found possible is {least.peak}, "
        f"{least.saved_bytes} of it saved for the backward; most is held by {held}"
    )

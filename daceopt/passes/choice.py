"""A choice among recipes, made for each program by the modelled time of what each recipe makes of it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from daceopt.passes.recipe import Recipe
from daceopt.passes.runner import Runner
from daceopt.passes.step import Step
from daceopt.passes.transform import Transformation

if TYPE_CHECKING:
    from daceopt.cost.program_time import ProgramTime
    from daceopt.ir.program import Program

logger = logging.getLogger("daceopt.recipe")

MARGIN = 0.05
"""The share of its kernels' time by which a later recipe must be faster than those before it: less is nothing that the
model knows. Library calls are mostly the same ones in all recipes, and their time is no reason to look away."""


@dataclass(frozen=True)
class Choice(Recipe):
    """``among`` several recipes; its own steps, which edits of it start from, are those of the first."""

    among: tuple[Recipe, ...] = ()

    @classmethod
    def of(cls, name: str, *among: Recipe) -> Choice:
        """The choice called ``name`` among recipes of which the first is taken in doubt."""
        return cls(name, among[0].steps, among)

    def fingerprint(self) -> str:
        return " ".join(r.fingerprint() for r in self.among)

    def _edited(self, steps: Iterable[Any]) -> Recipe:
        """An edited choice is none: whoever edits it has chosen."""
        return replace(self.among[0], name=self.name)._edited(steps)


@dataclass(frozen=True)
class Decision:
    """The recipe that was chosen, and the modelled seconds of each of the ``count`` that was tried."""

    chosen: str
    seconds: dict[str, float]
    count: int

    def __str__(self) -> str:
        times = ", ".join(f"{name} {1e3 * s:.3f} ms" for name, s in self.seconds.items())
        left = "; the kernels pass too little to one another for another" if len(self.seconds) < self.count else ""
        return f"recipe {self.chosen}, by the cost model ({times}{left})"


def run(choice: Choice, program: Program, verify: str | None) -> tuple[Program, list[Step], Decision]:
    """Apply the steps that all recipes begin with once, then the rest of the first; then that of each other one to a
    program of its own, but only where that may save what counts: intermediate arrays between kernels, and starts of
    threads. Returns the program that the model says is fastest, the steps that led to it, and why it is that one.

    Raises what a step raises.
    """
    from daceopt.cost.program_time import ProgramTime

    recipes = [r.with_differentiation() if program.wanted is not None else r for r in choice.among]
    steps = [r.resolved() for r in recipes]
    shared = common_prefix(steps)
    runner = Runner(choice.among[0], verify)
    runner.apply(program, steps[0][:shared])
    branches: list[tuple[Program, list[Step], ProgramTime]] = []
    for recipe, own in zip(recipes, steps):
        if branches and not branches[0][2].fusible > MARGIN * branches[0][2].kernels:
            break
        made, rest = program.copy(), Runner(recipe, verify)
        rest.apply(made, own[shared:])
        branches.append((made, rest.history, ProgramTime.of(made)))
    at = fastest([time for _, _, time in branches])
    decision = Decision(recipes[at].name, {r.name: b[2].total for r, b in zip(recipes, branches)}, len(recipes))
    logger.info("%s", decision)
    return branches[at][0], [*runner.history, *branches[at][1]], decision


def common_prefix(recipes: Sequence[Sequence[Transformation]]) -> int:
    """How many steps all of them begin with."""
    return sum(1 for _ in takewhile(lambda steps: len({*map(repr, steps)}) == 1, zip(*recipes)))


def fastest(times: Sequence[ProgramTime]) -> int:
    """The first that no later one beats by the margin."""
    best = 0
    for k, time in enumerate(times):
        if time.total < times[best].total - MARGIN * times[best].kernels:
            best = k
    return best

"""A choice among recipes, made for each program by the modelled time of what each recipe makes of it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import TYPE_CHECKING

from daceopt.errors import DaceoptError, UnequalLayers, Unsupported
from daceopt.passes.recipe import Edit, Recipe, recipes
from daceopt.passes.runner import Runner
from daceopt.passes.step import Step
from daceopt.passes.transform import Transformation

if TYPE_CHECKING:
    from daceopt.cost.program_time import ProgramTime
    from daceopt.ir.control.program import Program

_AUTOMATIC, _ON_DEVICE = "auto", "gpu"
logger = logging.getLogger("daceopt.recipe")

MARGIN = 0.05
"""The share of its kernels' time by which a recipe for them must be faster: less is nothing that the model knows."""

SHARE = 0.02
"""The share of the whole time that a recipe must save: less is not worth the time of running its steps."""

ATTAINED = 1 / 3
"""The share of what kernels pass one another that another recipe can be expected to save. Of 44 programs ``apollo``
was tried for the 11 where all of it would be worth while; it saved a third in one, a thirteenth in the next, at most a
twentieth in the others, and each took twice as long to compile."""


EARNED = 3e-7
"""The seconds for each node that another recipe must save in each call: to derive a program once more takes some 0.03
processor seconds for each of its nodes, which a hundred thousand calls should earn."""


def _fusible(first: ProgramTime) -> float:
    return ATTAINED * first.fusible


def _noticed_difference(first: ProgramTime) -> float:
    return max(MARGIN * first.kernels, SHARE * first.total, EARNED * first.nodes)


@dataclass(frozen=True)
class Candidate:
    """A recipe to choose. ``most``: the seconds that it can save at most, ``least``: that it must save, both of what is
    known of the first one's time. ``trains``, ``infers``: may it be chosen for programs with gradients, without them?
    ``modelled``: False where the model of time knows nothing of what it does: then it is for who measures (``tune``).

    The rule that is taken where none is given is about kernels: library calls are mostly the same ones in all recipes.
    """

    recipe: Recipe
    most: Callable[[ProgramTime], float] = _fusible
    least: Callable[[ProgramTime], float] = _noticed_difference
    trains: bool = True
    infers: bool = True
    modelled: bool = True

    def serves(self, trains: bool) -> bool:
        """May it be chosen for programs with gradients (``trains``), or without?"""
        return self.trains if trains else self.infers


def recipe_for(device: str, recipe: str | Recipe) -> Recipe:
    """The recipe for tensors on ``device``: what is chosen by itself is for the CPU, and ``gpu`` for CUDA devices; an
    edited choice is ``gpu`` with the same edits there.

    Raises Unsupported for edits at steps that ``gpu`` does not have.
    """
    choice = recipes.get(recipe) if isinstance(recipe, str) else recipe
    if device != "cuda" or not (choice.chosen == _AUTOMATIC or choice == recipes.get(_AUTOMATIC)):
        return choice
    chosen = recipes.get(_ON_DEVICE)
    try:
        for edit in choice.edits:
            chosen = edit.on(chosen)
    except DaceoptError as error:
        place = f"the recipe auto stands for {_ON_DEVICE} where tensors are on {device}"
        raise Unsupported(f"{place}: {error}; edit recipes.get({_ON_DEVICE!r}) for modules there") from error
    return chosen


@dataclass(frozen=True)
class Choice(Recipe):
    """One of ``among``; its own steps, which edits of it start from, are those of the first."""

    among: tuple[Candidate, ...] = ()

    @classmethod
    def of(cls, name: str, *among: Recipe | Candidate) -> Choice:
        """The choice called ``name`` among recipes of which the first is taken in doubt."""
        alternatives = tuple(one if isinstance(one, Candidate) else Candidate(one) for one in among)
        return cls(name, alternatives[0].recipe.steps, alternatives)

    def recipes(self, trains: bool | None = None) -> tuple[Recipe, ...]:
        """Those to choose from; for programs with gradients (``trains``), or without; all where it is None."""
        return tuple(c.recipe for c in self.among if trains is None or c.serves(trains))

    def fingerprint(self) -> str:
        return " ".join(r.fingerprint() for r in self.recipes())

    def _edit(self, steps: Iterable[object], *edits: Edit) -> Recipe:
        """An edited choice is none: whoever edits it has chosen."""
        return replace(self.among[0].recipe, name=self.name, chosen=self.name)._edit(steps, *edits)


@dataclass(frozen=True)
class Decision:
    """The recipe that was chosen, and the modelled seconds of each of the ``count`` that was tried; ``unknown``: those
    of which only measurements tell.
    """

    chosen: str
    seconds: dict[str, float]
    count: int
    unknown: tuple[str, ...] = ()

    def __str__(self) -> str:
        times = ", ".join(f"{name} {1e3 * s:.3f} ms" for name, s in self.seconds.items())
        note = "; there is too little to save for another" if len(self.seconds) < self.count else ""
        more = f"; tune=True would measure {' and '.join(self.unknown)} as well" if self.unknown else ""
        return f"recipe {self.chosen}, by the cost model ({times}{note}){more}"


def run(
    choice: Choice, program: Program, verify: str | None, finish: Callable[[Program], Program] = lambda program: program
) -> tuple[Program, list[Step], Decision]:
    """Apply the first recipe; then each other one, from where it parts from the first, to a program of its own, but
    only where that may save what it must. Returns the program that the model says is fastest, the steps that led to it,
    and why it is that one. ``finish``: makes the program that is built of what a recipe has made.

    Raises what a step raises, and what ``finish`` does for the first recipe; another one for which it raises is none to
    choose.
    """
    from daceopt.cost.program_time import ProgramTime

    serving = [c for c in choice.among if c.serves(program.gradients is not None)]
    among = [c for c in serving if c.modelled]
    recipes = [c.recipe.with_differentiation() if program.gradients is not None else c.recipe for c in among]
    steps = [r.resolve() for r in recipes]
    partings = [common_prefix([steps[0], own]) for own in steps]
    runner = Runner(recipes[0], verify)
    started = _apply_with_copies(runner, program, steps[0], partings[1:])
    program = finish(program)
    first = ProgramTime.of(program)
    best, fastest, seconds = (program, runner.history, recipes[0].name), first.total, {recipes[0].name: first.total}
    for candidate, recipe, own, parting in list(zip(among, recipes, steps, partings))[1:]:
        if candidate.most(first) <= candidate.least(first):
            continue
        (start, before), rest = started[parting], Runner(recipe, verify)
        rest.apply(short := start.copy(), own[parting:])
        finished = _try_to_finish(finish, short, recipe.name)
        if finished is None:
            continue
        seconds[recipe.name] = ProgramTime.of(finished).total
        if seconds[recipe.name] < fastest - candidate.least(first):
            best, fastest = (finished, [*before, *rest.history], recipe.name), seconds[recipe.name]
    unknown = tuple(c.recipe.name for c in serving if not c.modelled)
    decision = Decision(best[2], seconds, len(recipes), unknown)
    logger.info("%s", decision)
    return best[0], best[1], decision


def _apply_with_copies(
    runner: Runner, program: Program, steps: Sequence[Transformation], partings: Iterable[int]
) -> dict[int, tuple[Program, list[Step]]]:
    """Apply ``steps``; copies of the program as it was after the first ``partings`` of them, with what was done."""
    copies, applied = {}, 0
    for parting in sorted({*partings}):
        runner.apply(program, steps[applied:parting])
        copies[parting], applied = (program.copy(), list(runner.history)), parting
    runner.apply(program, steps[applied:])
    return copies


def _try_to_finish(finish: Callable[[Program], Program], unfinished: Program, recipe: str) -> Program | None:
    """What ``finish`` makes of a program; None, with the reason in the log, where it cannot."""
    try:
        return finish(unfinished)
    except UnequalLayers as reason:
        logger.info("recipe %s is not chosen: %s", recipe, reason)
        return None


def common_prefix(recipes: Sequence[Sequence[Transformation]]) -> int:
    """How many steps all of them begin with."""
    return sum(1 for _ in takewhile(lambda steps: len({*map(repr, steps)}) == 1, zip(*recipes)))

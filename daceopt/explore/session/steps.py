"""What a session is asked to apply: a site, a step, a recipe or a file, as steps that are behind those before."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from daceopt.codegen import target
from daceopt.errors import DaceoptError, SessionError, did_you_mean
from daceopt.explore.session.site_list import FoundSite, selector_of
from daceopt.passes import choice
from daceopt.passes.choice import Choice, recipe_for
from daceopt.passes.loading import run_file
from daceopt.passes.recipe import Recipe, as_step, recipes
from daceopt.passes.runner import Before, Runner
from daceopt.passes.transform import DIFFERENTIATE, Transformation, is_registered, transformations
from daceopt.store import identity
from daceopt.transformations.at_site import AtSite

if TYPE_CHECKING:
    import numpy as np

    from daceopt.explore.session.version import Version
    from daceopt.ir.control.program import Program
    from daceopt.passes.step import Step

SESSION = "session"  # what the recipe of a session is called in messages


class Done(NamedTuple):
    """The program that steps made, these steps, and what they did."""

    program: Program
    steps: Sequence[Transformation]
    records: Sequence[Step]
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Change:
    """One change of a session: ``steps``, or those of the recipe that a choice takes."""

    title: str
    steps: tuple[Transformation, ...]
    among: Choice | None = None

    @classmethod
    def of(cls, step: object, version: Version) -> Change:
        """The requested recipe or step. Raises DaceoptError where it does not exist, or would be out of order."""
        change = _as_asked(step, version)
        check_order(version, change.steps)
        if version.program.gradients is None and [s.level for s in change.steps] == [DIFFERENTIATE]:
            raise DaceoptError(f"{change.title}: {_why_not(version.program)}")
        return change

    def run(
        self,
        program: Program,
        verify: str | None,
        inputs: dict[str, np.ndarray] | None = None,
        before: Before | None = None,
    ) -> Done:
        """Edit ``program``, or give another one in its place. ``before`` is called before each step."""
        if self.among is not None:
            trains = program.gradients is not None
            program_after, records, decision = choice.run(self.among, program, verify)
            recipe = next(r for r in self.among.recipes() if r.name == decision.chosen)
            recipe = recipe.with_differentiation() if trains else recipe
            return Done(program_after, recipe.resolve(), records, [str(decision)])
        runner = Runner(Recipe(SESSION, self.steps), verify, inputs=inputs, before=before)
        return Done(program, self.steps, runner.apply(program, self.steps))


def check_order(version: Version, steps: Sequence[Transformation]) -> None:
    """Raise DaceoptError where no recipe can have ``steps`` behind those that led to ``version``."""
    Recipe(SESSION, (*version.path(), *steps)).resolve()


def in_order(version: Version, step: Transformation) -> bool:
    """May ``step`` come behind those that led to ``version``?"""
    try:
        check_order(version, [step])
    except DaceoptError:
        return False
    return True


def _why_not(program: Program) -> str:
    if program.backward is not None:
        return "the program is differentiated already"
    return "no gradients are wanted; explore a model whose parameters or inputs require them, or with backward=True"


def _as_asked(step: object, version: Version) -> Change:
    if isinstance(step, FoundSite):
        if step.session.at.line()[0] is not version.line()[0]:
            raise SessionError(f"{step} belongs to another session, on {step.session.title}")
        located = at_site(step, version.program)
        return Change(str(step), (located,))
    device = target.get(version.program.forward.options.target).device
    if isinstance(step, os.PathLike) or (isinstance(step, str) and (step.endswith(".py") or os.sep in step)):
        return _of_recipe(_recipe_in(Path(step)), device)
    if isinstance(step, Recipe):
        return _of_recipe(step, device)
    if isinstance(step, str) and step in recipes.names() and step not in transformations.names():
        return _of_recipe(recipes.get(step), device)
    resolved = resolve(step)
    return Change(str(resolved), (resolved,))


def _of_recipe(base: Recipe, device: str) -> Change:
    """The requested recipe, for arrays on ``device``."""
    recipe = recipe_for(device, base)
    among = recipe if isinstance(recipe, Choice) else None
    return Change(f"recipe {recipe.name}", tuple(map(resolve, recipe.resolve())), among)


def _recipe_in(path: Path) -> Recipe:
    """The only recipe of a file, whose transformations are registered."""
    module = run_file(path.resolve(), str(path))
    transformations.add_module(module)
    candidates = [value for value in vars(module).values() if isinstance(value, Recipe)]
    if len(candidates) != 1:
        raise DaceoptError(f"{path}: expected one recipe, found {len(candidates)}")
    return candidates[0]


def at_site(site: FoundSite, program: Program) -> AtSite:
    """The step that applies one site, wherever it is now. Raises SessionError where it is gone, or cannot be looked
    for."""
    step = site.transformation
    try:
        where = selector_of(site, program if identity.is_own(type(step).__module__) else program.copy())
    except DaceoptError:
        raise
    except Exception as error:  # of a user's transformation
        raise SessionError(f"step {step} cannot look for {site.text}: {type(error).__name__}: {error}") from error
    named = str(step) if is_registered(step.name) else step
    return AtSite(named, where.site, where.origin, where.number, site.direction)


def resolve(step: Any) -> Transformation:
    """A transformation from an instance, a class or text.

    Raises DaceoptError, with the nearest that there is, for another name or option; and for a class that is called as
    another one that is registered.
    """
    if isinstance(step, str):
        name = step.partition("{")[0].strip()
        if not is_registered(name) and not is_registered(name.replace("_", "-")):
            listed = f"no transformation or recipe is called {name!r}"
            raise DaceoptError(listed + did_you_mean(name, [*transformations.names(), *recipes.names()]))
    transformation = as_step(step)
    _check_name(transformation)
    return transformation


def _check_name(step: Transformation) -> None:
    """A class of the user's must not be called as something else: its text would mean that."""
    if step.name not in transformations.names():
        return
    other = transformations.get(step.name)
    if other is not type(step):
        there, here = (f"{c.__module__}.{c.__qualname__}" for c in (other, type(step)))
        raise DaceoptError(f"step {step} of {here} has the name of {there}; give the class another name")


def whole_steps() -> list[Transformation]:
    """Every registered transformation that is a step with its default options."""
    return [as_step(name) for name in transformations.names() if not transformations.get(name).needs_options]

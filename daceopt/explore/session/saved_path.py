"""The path of a session as a recipe file: Python text that loads, and says what belongs to one model alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from daceopt._version import __version__
from daceopt.errors import DaceoptError, SessionError
from daceopt.passes.transform import Transformation
from daceopt.programs.recipe_text import is_loaded, plain, recipe_name, recipe_text, step_text
from daceopt.transformations.at_site import AtSite

if TYPE_CHECKING:
    from daceopt.explore.session.version import Version


def recipe_file(stem: str, version: Version, model: str) -> str:
    """The text of a file with one recipe, called after its ``stem``. Raises SessionError for steps that it cannot
    name."""
    name, steps = recipe_name(stem, "session"), version.path()
    try:
        return recipe_text(name, list(_head(name, model, steps)), steps, list(_lines(version)))
    except DaceoptError as error:
        raise SessionError(str(error)) from error


def _head(name: str, model: str, steps: Sequence[Transformation]) -> Iterator[str]:
    single = [s for s in steps if isinstance(s, AtSite)]
    yield f"Steps of a session on {plain(model)}, written by daceopt {__version__}."
    yield ""
    yield f"Replay: session.apply(this file), or `--load` it with `--recipe {name}`."
    if single:
        yield ""
        yield "Each at-site belongs to this model: it picks one site by what it is called, where in the model it comes"
        yield "from and its number among equal ones. A model without such a site gets an error that lists those it has:"
        yield "give site or origin wildcards, leave them out for any, or write the step itself, which applies anywhere."
    foreign = sorted({s.inner.name for s in steps if is_loaded(s.inner)})
    if foreign:
        yield ""
        yield f"Needs the file that defines {', '.join(foreign)}: --load it first."


def _lines(version: Version) -> Iterator[str]:
    for change in version.line()[1:]:
        if len(change.steps) > 1:
            yield f"        # {plain(change.title)}"
        for step in change.steps:
            yield f"        {step_text(step)},"

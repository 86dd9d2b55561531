"""The path of a session as a recipe file: Python text that loads, and says what belongs to one model alone."""

from __future__ import annotations

import dataclasses
import importlib.util
import keyword
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from daceopt._version import __version__
from daceopt.errors import DaceoptError, SessionError
from daceopt.passes.transform import Transformation, is_registered
from daceopt.transformations.at_site import AtSite

if TYPE_CHECKING:
    from daceopt.explore.session.version import Version


def recipe_file(stem: str, version: Version, model: str) -> str:
    """The text of a file with one recipe, called after its ``stem``. Raises SessionError for steps that it cannot
    name."""
    name = re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-") or "session"
    steps = version.path()
    imports = sorted({line for step in steps for line in _imports(step)})
    head = [*_head(name, model, steps), "from daceopt import Recipe", *imports, ""]
    body = [f"{_variable(name)} = Recipe(", f"    {name!r},", "    (", *_lines(version), "    ),", ")"]
    return "\n".join([*head, *body]) + "\n"


def _head(name: str, model: str, steps: Sequence[Transformation]) -> Iterator[str]:
    single = [s for s in steps if isinstance(s, AtSite)]
    yield f'"""Steps of a session on {_plain(model)}, written by daceopt {__version__}.'
    yield ""
    yield f"Replay: session.apply(this file), or `--load` it with `--recipe {name}`."
    if single:
        yield ""
        yield "Each at-site belongs to this model: it picks one site by what it is called, where in the model it comes"
        yield "from and its number among equal ones. A model without such a site gets an error that lists those it has:"
        yield "give site or origin wildcards, leave them out for any, or write the step itself, which applies anywhere."
    foreign = sorted({s.inner.name for s in steps if _is_loaded(s.inner)})
    if foreign:
        yield ""
        yield f"Needs the file that defines {', '.join(foreign)}: --load it first."
    yield '"""'
    yield ""


def _lines(version: Version) -> Iterator[str]:
    for change in version.line()[1:]:
        if len(change.steps) > 1:
            yield f"        # {_plain(change.title)}"
        for step in change.steps:
            yield f"        {_step_text(step)},"


def _step_text(step: Transformation) -> str:
    """A step as Python: its text where that stands for it, else the call that makes it."""
    if _imports(step):
        text = _call(step.inner)
        if isinstance(step, AtSite):
            options = {"site": step.site, "origin": step.origin, "number": step.number, "direction": step.direction}
            return f"AtSite({text}, {', '.join(f'{k}={v!r}' for k, v in options.items())})"
        return text
    try:
        again = Transformation.parse(str(step))
    except DaceoptError as error:
        raise SessionError(f"{step} cannot be written into a file: {error}") from error
    if again != step and str(again) != str(step):
        raise SessionError(f"{step} cannot be written into a file: its text means {again}")
    return repr(str(step))


def _imports(step: Transformation) -> list[str]:
    """The lines that a step needs which no registry knows. Raises SessionError where nothing can import it."""
    definer, of_dace = step.inner.defined_by, step.inner.defined_by is not type(step.inner)
    if is_registered(step.inner.name) and (not of_dace or _is_loaded(step.inner)):
        return []
    module, name = definer.__module__, definer.__qualname__
    if "." in name or module == "__main__" or not _importable(module):
        where = (
            "put its class into a file, load that with daceopt.transformations.load_file(file), and apply it by name"
        )
        raise SessionError(
            f"{step} cannot be written into a file, for no other program can import {module}.{name}: {where}"
        )
    own = [type(step)] if isinstance(step, AtSite) else []
    named = [*own, *([type(step.inner)] if of_dace else []), definer]
    return [f"from {c.__module__} import {c.__qualname__}" for c in named]


def _importable(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _is_loaded(step: Transformation) -> bool:
    return is_registered(step.name) and step.defined_by.__module__.startswith("daceopt_loaded_")


def _call(step: Transformation) -> str:
    options = ", ".join(f"{f.name}={getattr(step, f.name)!r}" for f in dataclasses.fields(step))
    return f"{type(step).__name__}({options})"


def _variable(name: str) -> str:
    identifier = name.replace("-", "_")
    return identifier if identifier.isidentifier() and not keyword.iskeyword(identifier) else f"recipe_{identifier}"


def _plain(text: str) -> str:
    """Text of a model or a user that stays within a comment or a docstring, whatever it says."""
    return "".join(c if c.isprintable() and c not in '"\\' else "?" for c in text)

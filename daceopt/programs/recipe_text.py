"""Recipes as Python files: the text of steps, the imports they need, and names that a file can have."""

from __future__ import annotations

import dataclasses
import importlib.util
import keyword
import re
from collections.abc import Iterable, Sequence

from daceopt.errors import DaceoptError
from daceopt.passes.transform import Transformation, is_registered
from daceopt.transformations.at_site import AtSite


def recipe_text(name: str, head: Sequence[str], steps: Sequence[Transformation], lines: Iterable[str]) -> str:
    """The text of a file with one recipe; ``head``: lines of its docstring, ``lines``: those of its ``steps``, indented
    and with comments among them. Raises DaceoptError for steps that no file can name."""
    imports = sorted({line for step in steps for line in _imports(step)})
    above = ['"""' + head[0], *head[1:], '"""', "", "from daceopt import Recipe", *imports, ""]
    body = [f"{_variable(name)} = Recipe(", f"    {name!r},", "    (", *lines, "    ),", ")"]
    return "\n".join([*above, *body]) + "\n"


def recipe_name(stem: str, default: str) -> str:
    """What a recipe in a file of this stem is called."""
    return re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-") or default


def step_text(step: Transformation) -> str:
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
        raise DaceoptError(f"{step} cannot be written into a file: {error}") from error
    if again != step and str(again) != str(step):
        raise DaceoptError(f"{step} cannot be written into a file: its text means {again}")
    return repr(str(step))


def _imports(step: Transformation) -> list[str]:
    """The lines that a step needs which no registry knows. Raises DaceoptError where nothing can import it."""
    definer, of_dace = step.inner.defined_by, step.inner.defined_by is not type(step.inner)
    if is_registered(step.inner.name) and (not of_dace or is_loaded(step.inner)):
        return []
    module, name = definer.__module__, definer.__qualname__
    if "." in name or module == "__main__" or not _importable(module):
        where = (
            "put its class into a file, load that with daceopt.transformations.load_file(file), and apply it by name"
        )
        raise DaceoptError(
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


def is_loaded(step: Transformation) -> bool:
    """Does it come from a file that somebody has loaded?"""
    return is_registered(step.name) and step.defined_by.__module__.startswith("daceopt_loaded_")


def _call(step: Transformation) -> str:
    options = ", ".join(f"{f.name}={getattr(step, f.name)!r}" for f in dataclasses.fields(step))
    return f"{type(step).__name__}({options})"


def _variable(name: str) -> str:
    identifier = name.replace("-", "_")
    return identifier if identifier.isidentifier() and not keyword.iskeyword(identifier) else f"recipe_{identifier}"


def plain(text: str) -> str:
    """Text of a model or a user that stays within a comment or a docstring, whatever it says."""
    return "".join(c if c.isprintable() and c not in '"\\' else "?" for c in text)

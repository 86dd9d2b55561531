"""The options of ``optimized_module``: what they may be, checked as soon as they are given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

from daceopt.errors import DaceoptError, did_you_mean
from daceopt.passes import memory_budget
from daceopt.passes.recipe import Recipe, recipes
from daceopt.passes.transform import parse_step
from daceopt.programs.tuning.budget import tuning_budget

RECOMPILE_LIMIT = 32
"""Programs of one piece of code in one module, beyond which calls that fit none of them run eagerly."""

FALLBACKS = ("warn", "raise", "silent")
VERIFICATIONS = ("structure", "numerics")
_DYNAMIC = (
    "None, True, False or a dict from an argument's name or flat position to its axes, as in {'x': {0}} or "
    "{'x': {0: torch.export.Dim('n')}}"
)


@dataclass(frozen=True)
class Options:
    """The arguments of ``optimized_module``; ``tune`` in seconds. A memory budget is an option of the recipe."""

    recipe: str | Recipe = "auto"
    backward: bool | None = None
    dynamic: Any = None
    fallback: str = "warn"
    verify: str | None = None
    tune: float | None = None


def check(
    recipe: Any = "auto",
    backward: Any = None,
    dynamic: Any = None,
    fallback: Any = "warn",
    verify: Any = None,
    tune: Any = None,
    budget: Any = None,
) -> Options:
    """These options, all of them looked at now rather than at the first call.

    Raises TypeError for a value of the wrong type and ValueError for one that does not exist, with the nearest that
    does. Recipes are looked up by name only; text may give options with it, as in ``apollo{tune='30s'}``.
    """
    recipe, tune, budget = _with_text(recipe, tune, budget)
    _check_recipe(recipe)
    if backward is not None and not isinstance(backward, bool):
        raise TypeError(f"backward={backward!r}; expected None, True or False, not {_kind(backward)}")
    _check_dynamic(dynamic)
    _check_name("fallback", fallback, FALLBACKS)
    if verify is not None:
        _check_name("verify", verify, VERIFICATIONS, "None or ")
    memory_budget.check("memory_budget", budget)
    if budget is not None:
        recipe = (recipes.get(recipe) if isinstance(recipe, str) else recipe).within(budget)
    return Options(recipe, backward, dynamic, fallback, verify, tuning_budget(tune))


def _with_text(recipe: object, tune: object, budget: object) -> tuple[Any, Any, Any]:
    """The three options where the recipe's text may give the others."""
    if not (isinstance(recipe, str) and "{" in recipe):
        return recipe, tune, budget
    try:
        name, settings = parse_step(recipe)
    except DaceoptError as error:
        raise ValueError(f"recipe={recipe!r}; expected a name, or text like apollo{{tune='30s'}}") from error
    values = {"tune": tune, "memory_budget": budget}
    for option, value in settings.items():
        if option not in values:
            expected = f"recipe={recipe!r}; expected options of {' and '.join(values)}"
            raise ValueError(expected + did_you_mean(option, list(values)))
        if values[option] is not None:
            raise ValueError(f"recipe={recipe!r} and {option}={values[option]!r}; expected one of both")
        values[option] = value
    return name, values["tune"], values["memory_budget"]


def _check_recipe(recipe: object) -> None:
    if not isinstance(recipe, Recipe):
        _check_name("recipe", recipe, recipes.names(), "a daceopt.Recipe or ")


def _check_name(option: str, value: object, allowed: Sequence[str], before: str = "") -> None:
    expected = f"{option}={value!r}; expected {before}one of {', '.join(map(repr, allowed))}"
    if not isinstance(value, str):
        raise TypeError(f"{expected}, not {_kind(value)}")
    if value not in allowed:
        raise ValueError(expected + did_you_mean(value, allowed))


def _check_dynamic(dynamic: object) -> None:
    if dynamic is None or isinstance(dynamic, bool):
        return
    if not isinstance(dynamic, Mapping):
        raise TypeError(f"dynamic={dynamic!r}; expected {_DYNAMIC}, not {_kind(dynamic)}")
    for argument, axes in dynamic.items():
        if not isinstance(argument, str):
            _check_position(argument, f"dynamic names the argument {argument!r}", "a name or a flat position")
        _check_axes(axes, f"dynamic[{argument!r}]")


def _check_axes(axes: Any, where: str) -> None:
    """``axes`` of one argument: a set of them, a dict from them to what torch.export takes, or a sequence of either
    axes or one entry per axis; arguments that are containers have dicts and sequences of these.
    """
    if axes is None:
        return
    if isinstance(axes, Mapping):
        for key, inner in axes.items():
            if isinstance(key, str):
                _check_axes(inner, f"{where}[{key!r}]")
            else:
                _check_position(key, f"{where} names the axis {key!r}", "an axis")
    elif isinstance(axes, AbstractSet) or _is_list_of_axes(axes):
        for axis in axes:
            _check_position(axis, f"{where} names the axis {axis!r}", "an axis")
    elif not isinstance(axes, list | tuple):
        raise TypeError(f"{where} is {axes!r}; expected a set of axes, as in {{0}}, not {_kind(axes)}")


def _is_list_of_axes(axes: object) -> bool:
    return isinstance(axes, list | tuple) and any(isinstance(axis, int | str | float) for axis in axes)


def _check_position(value: object, message: str, expected: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{message}; expected {expected}: an integer of 0 or more, not {_kind(value)}")
    if value < 0:
        raise ValueError(f"{message}; expected {expected}: an integer of 0 or more")


def _kind(value: object) -> str:
    return type(value).__name__

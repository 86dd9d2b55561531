"""Options of steps as users give them: their names, and values of the types that the fields of a class say."""

from __future__ import annotations

import dataclasses
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, Union, get_args, get_origin

from daceopt.errors import DaceoptError, did_you_mean

_T = TypeVar("_T")
_PLAIN = (int, float, str, bool, type(None))


def make_step(step: str, cls: type[_T], options: Mapping[str, object], make: Callable[[dict[str, Any]], _T]) -> _T:
    """What ``make`` gives for ``options`` of ``cls``, which is called ``step``; lists are tuples where it takes tuples.

    Raises DaceoptError for an option that does not exist, with the nearest that does; what the class says of a value;
    and for values of another type, and whatever else the class raises.
    """
    values = {name: _check_option(step, cls, name, value) for name, value in options.items()}
    try:
        new = make(values)
    except DaceoptError:
        raise
    except Exception as error:
        _check_types(step, cls, values)
        raise DaceoptError(f"step {step} does not take these options: {type(error).__name__}: {error}") from error
    _check_types(step, cls, values)
    return new


def _check_option(step: str, cls: type, name: str, value: object) -> Any:
    names = [f.name for f in dataclasses.fields(cls)]
    if name not in names:
        listed = f"{step} has no option {name!r}; it has {', '.join(names) or 'none'}"
        raise DaceoptError(listed + did_you_mean(name, names))
    return _freeze(value) if _takes_tuples(_annotation(cls, name)[0]) else value


def _check_types(step: str, cls: type, values: Mapping[str, object]) -> None:
    for name, value in values.items():
        expected, text = _annotation(cls, name)
        if not _fits(value, expected):
            raise DaceoptError(f"{step}: {name}={value!r}; expected {text}, found {type(value).__name__}")


def _annotation(cls: type, name: str) -> tuple[Any, str]:
    """The type of a field, and its text; Any where it names what exists for type checkers alone."""
    owner = next(c for c in cls.__mro__ if name in vars(c).get("__annotations__", ()))
    annotation = vars(owner)["__annotations__"][name]
    if not isinstance(annotation, str):
        return annotation, annotation.__name__ if isinstance(annotation, type) else str(annotation)
    try:
        return eval(annotation, dict(vars(sys.modules[owner.__module__]))), annotation
    except Exception:
        return Any, annotation


def _freeze(value: Any) -> Any:
    return tuple(map(_freeze, value)) if type(value) in (list, tuple) else value


def _members(expected: object) -> tuple[Any, ...]:
    """The types of a union, or the one type; None stands for its own type."""
    is_union = get_origin(expected) in (Union, types.UnionType)
    return tuple(type(None) if t is None else t for t in (get_args(expected) if is_union else (expected,)))


def _takes_tuples(expected: object) -> bool:
    return any(t is tuple or get_origin(t) is tuple for t in _members(expected))


def _fits(value: object, expected: object) -> bool:
    """Is ``value`` of the type? What is neither plain nor a tuple of such is for the class to judge."""
    return any(_fits_one(value, t) for t in _members(expected))


def _fits_one(value: object, expected: object) -> bool:
    if expected in _PLAIN:
        kind = (int, float) if expected is float else expected
        return isinstance(value, kind) and (expected is bool or not isinstance(value, bool))
    if get_origin(expected) is not tuple:
        return expected is not tuple or isinstance(value, tuple)
    if not isinstance(value, tuple):
        return False
    parts = get_args(expected)
    if len(parts) == 2 and parts[1] is ...:
        return all(_fits(v, parts[0]) for v in value)
    return len(value) == len(parts) and all(map(_fits, value, parts))

"""What a page may ask of a live session: a closed table of verbs with typed arguments.

A request is ``{"id": 3, "verb": "measure", "arguments": {"version": 2, "kernel": 0, "seconds": 0.5}}``. No argument is
code, a path or the text of a step: what a page sends is compared with what there is, never evaluated.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from daceopt.errors import DaceoptError

LONGEST = 64 * 1024  # characters of a message
_LONGEST_TEXT, _MOST_ENTRIES, _LARGEST = 200, 16, 1 << 31
Value = int | float | bool | str | tuple[str, ...]
Check = Callable[[object], Value | None]


class BadRequest(DaceoptError):
    """A message that is no request of a page; ``number`` is its own, where it has one."""

    def __init__(self, message: str, number: int = 0):
        super().__init__(message)
        self.number = number


@dataclass(frozen=True)
class Request:
    """``number``: what the answer refers to. ``arguments``: all that the verb takes, checked."""

    number: int
    verb: str
    arguments: Mapping[str, Value] = field(default_factory=dict)


def _natural(value: object) -> int | None:
    return value if type(value) is int and 0 <= value < _LARGEST else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and 0 < len(value) <= _LONGEST_TEXT and value.isprintable() else None


def _text_or_none(value: object) -> str | None:
    return "" if value == "" else _text(value)


def _seconds(value: object) -> float | None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if is_number and 0 < value <= 60 else None  # type: ignore[arg-type, operator]


def _choice(value: object) -> bool | None:
    return value if isinstance(value, bool) else None


def _names(value: object) -> tuple[str, ...] | None:
    if not isinstance(value, list) or len(value) > _MOST_ENTRIES:
        return None
    texts = [_text(entry) for entry in value]
    return tuple(text for text in texts if text is not None) if None not in texts else None


_KERNEL: dict[str, Check] = {"version": _natural, "kernel": _natural}
_EDIT: dict[str, Check] = {**_KERNEL, "edit": _text, "loops": _names, "value": _text_or_none}
VERBS: Mapping[str, Mapping[str, Check]] = {
    "state": {},
    "scene": {"version": _natural, "direction": _text, "module": _natural},
    "kernel": _KERNEL,
    "code": _KERNEL,
    "sites": _KERNEL,
    "apply_site": {"version": _natural, "site": _natural},
    "apply_step": {"version": _natural, "step": _text},
    "try_edit": _EDIT,
    "apply_edit": _EDIT,
    "undo": {},
    "redo": {},
    "branch": {"name": _text},
    "compare": {"other": _text, "seconds": _seconds},
    "measure": {**_KERNEL, "seconds": _seconds},
    "save": {"name": _text, "overwrite": _choice},
}


def parse(message: object) -> Request:
    """The request of a message, text in JSON or what such text says. Raises BadRequest with what was expected."""
    body = _decode(message) if isinstance(message, str) else message
    if not isinstance(body, Mapping):
        raise BadRequest("expected a message like {id, verb, arguments}")
    number = _natural(body.get("id"))
    if number is None:
        raise BadRequest("expected a number from 0 as id")
    verb, arguments = body.get("verb"), body.get("arguments", {})
    if not isinstance(verb, str) or verb not in VERBS:
        raise BadRequest(f"there is no such verb; expected one of {', '.join(VERBS)}", number)
    fields = VERBS[verb]
    if not isinstance(arguments, Mapping) or set(arguments) != set(fields):
        raise BadRequest(f"{verb} takes {', '.join(fields) or 'no arguments'}", number)
    values: dict[str, Value] = {}
    for name, check in fields.items():
        value = check(arguments[name])
        if value is None:
            raise BadRequest(f"{name} of {verb} is not of the type or size that it takes", number)
        values[name] = value
    return Request(number, verb, values)


def _decode(text: str) -> object:
    if len(text) > LONGEST:
        raise BadRequest(f"a message of {len(text)} characters; expected at most {LONGEST}")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadRequest("a message that is no JSON") from error

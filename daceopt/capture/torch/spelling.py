"""Values that are equal and differ, where Dynamo's guards compare by ``==``: ``0.0`` and ``-0.0``, ``{1}`` and
``{True}``."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from torch import nn

from daceopt.torch_internals.dynamo_guards import Guard

_BY_EQUALITY = ("CONSTANT_MATCH", "EQUALS_MATCH")
_COLLECTIONS = (tuple, list, set, frozenset, slice)


def check(builder: Any, guard: Guard) -> None:
    """Add to each guard of a value that has an equal one the condition that it is not that one."""
    names = set()
    for one in builder.check_fn_manager.output_graph.guards:
        kind = one.create_fn_name()
        if (kind != "TYPE_MATCH" and kind not in _BY_EQUALITY) or one.name in names:
            continue
        same = _condition(builder.get(one), kind)
        if same is not None and not _is_of_library(builder, one):
            names.add(one.name)
            text = f"{one.name} is equal to what it was, and another value"
            builder.get_guard_manager(one).add_lambda_guard(same, [text], None)


def _condition(value: object, kind: str) -> Callable[[Any], bool] | None:
    if type(value) is float:
        if value:
            return None
        sign = math.copysign(1.0, value)
        # a number that is an argument of its program may have any other value
        return lambda now: bool(now) or math.copysign(1.0, now) == sign
    if kind not in _BY_EQUALITY:
        return None
    if (type(value) is complex and not (value.real and value.imag)) or isinstance(value, _COLLECTIONS):
        text = spell(value)
        return lambda now: spell(now) == text
    return None


def spell(value: object) -> str:
    """A text that differs for numbers of different types, and for zeros of different signs."""
    if isinstance(value, (set, frozenset)):
        return f"{type(value).__name__}{sorted(map(spell, value))}"
    if isinstance(value, (tuple, list)):
        return f"{type(value).__name__}{[spell(x) for x in value]}"
    return repr(value) if isinstance(value, (bool, int, float, complex, slice)) else ""


def is_negative_zero(value: float) -> bool:
    """Whether it is the zero that SymPy takes for the other one."""
    return not value and math.copysign(1.0, value) < 0


def _is_of_library(builder: Any, guard: Guard) -> bool:
    """Whether it is an option of one of PyTorch's own layers (``p`` of dropout), which have no use for a sign."""
    base = getattr(guard.originating_source, "base", None)
    if base is None:
        return False
    owner = builder.get(base)
    return isinstance(owner, nn.Module) and type(owner).__module__.startswith("torch.nn.")

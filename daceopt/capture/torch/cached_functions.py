"""Functions behind ``functools.lru_cache`` in a model: what one gave first it gives ever after, so it is asked while
Dynamo traces, not traced itself. That it still gives this is guarded."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NoReturn

import torch

from daceopt.capture.torch.conditions import check_same, condition
from daceopt.capture.torch.lines import UNLIKE_PYTHON
from daceopt.torch_internals.dynamo_tracing import (
    SymNodeVariable,
    Translator,
    VariableTracker,
    break_graph,
    current_translator,
    is_traced_without_cache,
)

_LITERALS = (bool, int, float, complex, str, bytes, type(None), torch.dtype)


def call(
    original: Callable[..., Any], self: VariableTracker, tx: Translator, args: list[Any], kwargs: dict[str, Any]
) -> VariableTracker:
    """Of a function that Dynamo has found to be wrapped."""
    if not is_cache(self.wrapper_obj):
        return original(self, tx, args, kwargs)
    return call_cached(tx, self.wrapper_obj, [*self.self_args(), *args], kwargs)


def is_cache(function: Any) -> bool:
    """Has the user put a cache around it? Those of torch are its own affair."""
    module = getattr(getattr(function, "__wrapped__", None), "__module__", None) or ""
    own = module.split(".")[0] == "torch" or is_traced_without_cache(function)
    return hasattr(function, "cache_info") and not own


def call_cached(tx: Translator, cached: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> VariableTracker:
    """What the function gives for these variables of Dynamo. Breaks the graph where they, or it, are no literals."""
    call = functools.partial(cached, *map(constant, args), **{name: constant(x) for name, x in kwargs.items()})
    result = call()
    if not _is_literal(result):
        _break()
    tx.output.guards.add(condition(functools.partial(check_same, call, result)))
    return VariableTracker.build(tx, result)


def constant(value: VariableTracker) -> object:
    """The number or string that a variable of Dynamo is. Breaks the graph where it is none."""
    if isinstance(value, SymNodeVariable):
        return value.evaluate_expr(current_translator().output)
    if not value.is_python_constant() or not _is_literal(value.as_python_constant()):
        _break()
    return value.as_python_constant()


def _is_literal(value: object) -> bool:
    return isinstance(value, _LITERALS) or (type(value) is tuple and all(map(_is_literal, value)))


def _break() -> NoReturn:
    reason = "a functools.lru_cache of something other than numbers and strings"
    break_graph(reason, UNLIKE_PYTHON, ["take the cache away"])

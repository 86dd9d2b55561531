"""Calls of loggers in a model, as Dynamo traces them: what a logger does not show is no call and breaks no graph."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

from daceopt.capture.torch.cached_functions import call_cached, is_cache
from daceopt.capture.torch.conditions import check_same, condition
from daceopt.torch_internals.dynamo_guards import AttrSource
from daceopt.torch_internals.dynamo_tracing import ConstantVariable, Translator, VariableTracker

_LEVELS = {
    **{name: getattr(logging, name.upper()) for name in ("debug", "info", "warning", "error", "critical")},
    "warn": logging.WARNING,
    "exception": logging.ERROR,
}
"""Methods of loggers -> the level at which they say something."""


def call(
    original: Callable[..., Any],
    self: VariableTracker,
    tx: Translator,
    name: str,
    args: list[Any],
    kwargs: dict[str, Any],
) -> VariableTracker:
    """What a logger does not show is no call; that it does not, and what it says of its levels, is guarded. A method
    behind a cache (``logger.warning_once``) has said it when the graph is made."""
    method: Any = getattr(type(self.value), name, None)
    if is_cache(method):
        return call_cached(tx, functools.partial(method, self.value), args, kwargs)
    level = _LEVELS.get(name)
    if name in ("log", "isEnabledFor") and args and args[0].is_python_constant():
        level = args[0].as_python_constant()
    if not isinstance(level, int):
        return original(self, tx, name, args, kwargs)
    asks = functools.partial(self.value.isEnabledFor, level)
    shown = asks()
    tx.output.guards.add(condition(functools.partial(check_same, asks, shown)))
    if name == "isEnabledFor":
        return ConstantVariable.create(shown)
    return original(self, tx, name, args, kwargs) if shown else ConstantVariable.create(None)


def attribute(original: Callable[..., Any], self: VariableTracker, tx: Translator, name: str) -> VariableTracker:
    """``logging.debug`` and its like ask whether the root logger has handlers."""
    if name != "handlers" or self.source is None:
        return original(self, tx, name)
    return VariableTracker.build(tx, self.value.handlers, AttrSource(self.source, name))

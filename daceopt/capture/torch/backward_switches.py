"""Where the backward of a custom function, or a hook on a gradient, switches gradients off, or on, itself.

Dynamo traces all of it with gradients off, as autograd runs it for a first derivative, and passes over switches that
change nothing then. A derivative of that derivative has to know them: see ``recorded_backward``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import fx
from torch.autograd.function import once_differentiable

from daceopt.scoped import scoped
from daceopt.torch_internals import autograd_engine
from daceopt.torch_internals.dynamo_tracing import Translator, VariableTracker

RECORDED = "daceopt_recorded"
"""In the meta of a node that switches: whether gradients are on there by the backward's own code, in which they are at
its beginning; None where that code only asks whether they are."""

ONCE = "daceopt_once"
"""In the meta of a node where ``once_differentiable`` asks."""

_WRAPPER = once_differentiable(print).__code__


@dataclass
class _Scope:
    recorded: bool = True
    before: dict[int, bool] = field(default_factory=dict)  # of each block that has been entered


_scope: ContextVar[_Scope | None] = ContextVar("the backward of a custom function that Dynamo traces", default=None)


def trace_backward(original: Callable[..., Any], self: object, *args: object, **kwargs: object) -> object:
    """Dynamo's trace of a backward, or of a hook."""
    with scoped(_scope, _Scope()):
        return original(self, *args, **kwargs)


def switch(original: Callable[..., None], self: VariableTracker, tx: Translator, values: Sequence[bool]) -> None:
    """The beginning or the end of ``torch.no_grad`` and its like."""
    original(self, tx, values)
    scope = _scope.get()
    if scope is None:
        return
    if values is self.target_values:
        scope.before.setdefault(id(self), scope.recorded)
        scope.recorded = values[0]
    else:
        scope.recorded = scope.before.pop(id(self), scope.recorded)
    _note(tx, scope.recorded)


def note_question(tx: Translator) -> None:
    """Code asks whether gradients are on: for a first derivative they are not."""
    if _scope.get() is not None:
        _note(tx, None).meta[ONCE] = tx.f_code is _WRAPPER


def _note(tx: Translator, recorded: bool | None) -> fx.Node:
    node = tx.output.create_node("call_function", autograd_engine.set_grad_enabled, (torch.is_grad_enabled(),), {})
    node.meta[RECORDED] = recorded
    return cast(fx.Node, node)


def call_custom(
    original: Callable[..., Any], self: VariableTracker, tx: Translator, args: object, kwargs: object
) -> VariableTracker:
    """A custom function that a backward calls keeps its own backward, although gradients are off in this trace, where
    Dynamo would go through its forward alone."""
    scope = _scope.get()
    if scope is None or not scope.recorded or torch.is_grad_enabled():
        return original(self, tx, args, kwargs)
    tensors: list[VariableTracker] = []
    VariableTracker.visit(lambda v: tensors.append(v) if v.is_tensor() else None, (args, kwargs))
    flags = [(v, v.requires_grad) for v in tensors]
    try:
        for v in tensors:
            v.requires_grad = True
        with torch.enable_grad():
            return original(self, tx, args, kwargs)
    finally:
        for v, flag in flags:
            v.requires_grad = flag


@contextmanager
def own_switch(original: Callable[..., Any], tx: Translator, enable: bool = True) -> Iterator[None]:
    """Dynamo's own switch around the graph of a body, which is not the code's."""
    block = original(tx, enable)
    with scoped(_scope, None):
        block.__enter__()
    try:
        yield
    finally:
        with scoped(_scope, None):
            block.__exit__(None, None, None)

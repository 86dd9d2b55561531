"""Numbers that change, where Python wants a number: contexts of torch, and text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from daceopt.torch_internals.dynamo_tracing import (
    ConstantVariable,
    LazySymNodeFormatString,
    LazyVariableTracker,
    SymNodeVariable,
    Translator,
    VariableTracker,
)

Method = Callable[..., Any]

_CONVERSIONS: tuple[Callable[[Any], Any], ...] = (lambda value: value, str, repr, ascii)  # {x}, {x!s}, {x!r}, {x!a}


def call_context(original: Method, self: VariableTracker, tx: Translator, args: Any, kwargs: Any) -> VariableTracker:
    """Whether a context manager of torch does anything is decided by Python: a number that changes is a constant."""
    named = {name: _decide(value, tx) for name, value in kwargs.items()}
    return original(self, tx, [_decide(value, tx) for value in args], named)


def _decide(value: VariableTracker, tx: Translator) -> VariableTracker:
    value = value.realize()
    is_number = isinstance(value, SymNodeVariable)
    return ConstantVariable.create(value.evaluate_expr(tx.output)) if is_number else value


def format_value(original: Method, self: Any, spec: VariableTracker, flags: int) -> None:
    """Dynamo gives the number itself where its text is a result."""
    value = self.stack[-1]
    original(self, spec, flags)
    if isinstance(value, SymNodeVariable):
        self.stack[-1] = LazyVariableTracker.create(_Text(value.realize(), spec, flags), source=None)


class _Text(LazySymNodeFormatString):
    """The text of a number, which becomes a constant where the text is wanted."""

    def __init__(self, number: object, spec: VariableTracker, flags: int) -> None:
        super().__init__(number, spec)
        self._spec, self._converted = spec.as_python_constant(), _CONVERSIONS[flags & 3]

    def __repr__(self) -> str:
        return format(self._converted(self.sym_node_var.evaluate_expr()), self._spec)

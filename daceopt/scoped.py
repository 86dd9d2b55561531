"""A context variable that has another value within a block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")


@contextmanager
def scoped(variable: ContextVar[T], value: T) -> Iterator[T]:
    """Within the block ``variable`` is ``value``, in this thread and task; afterwards what it was."""
    token = variable.set(value)
    try:
        yield value
    finally:
        variable.reset(token)

"""Whether a trace of Dynamo's has met sizes, or numbers, that only the data decide."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any


class Decided:
    """``any``: whether a call decided one."""

    any = False


_watched: ContextVar[Decided | None] = ContextVar("decided", default=None)


@contextmanager
def watch() -> Iterator[Decided]:
    """A trace that is repeated without such sizes, as a graph that breaks there, if this one fails and met any."""
    decided = Decided()
    token = _watched.set(decided)
    try:
        yield decided
    finally:
        _watched.reset(token)


def is_repeated() -> bool:
    """Whether a graph that is refused now is traced again."""
    watched = _watched.get()
    return watched is not None and watched.any


def note(environment: Any) -> None:
    """A call has run on fake tensors of this ``ShapeEnv``."""
    watched = _watched.get()
    if watched is not None and environment is not None and environment.pending_fresh_unbacked_symbols:
        watched.any = True

"""A graph that eager PyTorch runs as it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from daceopt.programs.stats import Stats


class EagerPiece:
    """A graph that runs in eager PyTorch: it was refused, or that is fastest as measured; its calls are counted."""

    def __init__(self, stats: Stats, forward: Callable[..., Any]) -> None:
        self._stats, self._forward = stats, forward

    def __call__(self, *arguments: Any) -> Any:
        self._stats.count_eager()
        return self._forward(*arguments)

"""A graph that eager PyTorch runs as it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from daceopt.programs.stats import Stats


class EagerPiece:
    """A graph that runs in eager PyTorch: it was refused, or that is fastest (``is_chosen``); its calls are counted."""

    def __init__(self, stats: Stats, forward: Callable[..., Any], is_chosen: bool = False) -> None:
        self._stats, self._forward, self._is_chosen = stats, forward, is_chosen

    def __call__(self, *arguments: Any) -> Any:
        self._stats.count_eager(is_chosen=self._is_chosen)
        return self._forward(*arguments)

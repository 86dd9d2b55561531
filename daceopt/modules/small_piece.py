"""A graph that eager PyTorch runs while the tensors of its calls are small."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from daceopt.modules.description import is_symbolic
from daceopt.modules.eager_piece import EagerPiece

if TYPE_CHECKING:
    from daceopt.capture.torch.traced import Traced
    from daceopt.modules.small_graphs import CallEstimate
    from daceopt.programs.stats import Stats


class SmallPiece:
    """A graph that eager PyTorch runs faster than a program is called, while the tensors of a call are as small as they
    were in the first; the first larger ones bring a program, which runs all calls from then on that are as large."""

    def __init__(
        self, stats: Stats, traced: Traced, cost: CallEstimate, compiled: Callable[[Sequence[Any]], Callable[..., Any]]
    ) -> None:
        """``compiled``: the program for all calls that are as large as one with these arguments."""
        self._compiled, self._found = compiled, cost
        self._eager = EagerPiece(stats, traced.graph.forward, is_chosen=True)
        self._may_grow = is_symbolic(traced)
        self._larger: Callable[..., Any] | None = None
        self._lock = threading.RLock()

    def __call__(self, *arguments: Any) -> Any:
        if not self._may_grow or self._found.holds(arguments):
            return self._eager(*arguments)
        with self._lock:
            if self._larger is None:
                self._larger = self._compiled(arguments)
        return self._larger(*arguments)

"""A progress bar for long recipes: only on a terminal, only when there is enough work to wait for."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any

_LONG = 500  # nodes: below this a recipe ends before a bar could be read


class Progress:
    """Context manager that tells ``callback`` of each finished step, or else draws a bar on stderr when useful."""

    def __init__(self, steps: int, nodes: int, callback: Callable[[Any], None] | None = None):
        self._steps, self._callback = steps, callback
        self._draw = callback is None and nodes >= _LONG and sys.stderr.isatty()
        self._bar: Any = None

    def __enter__(self) -> Progress:
        if self._draw:
            from rich.console import Console
            from rich.progress import Progress as Bar

            self._bar = Bar(console=Console(stderr=True), transient=True)
            self._bar.start()
            self._bar.add_task("optimizing", total=self._steps)
        return self

    def advance(self, step: Any) -> None:
        """Say that ``step`` is done."""
        if self._callback is not None:
            self._callback(step)
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], advance=1, description=step.name)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

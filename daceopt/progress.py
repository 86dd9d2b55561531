"""What a compilation is doing, where somebody looks: on a terminal and in notebooks, once it takes a while.

Elsewhere nothing is drawn. Either way one line at INFO says what took how long (``DACEOPT_LOGS=pipeline``).
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol

logger = logging.getLogger("daceopt.pipeline")

DELAY = 0.5
"""Seconds before anything is drawn: what is over sooner needs no progress."""


@dataclass(eq=False)
class ProgressRow:
    """Something under way: ``done`` of ``total``, None where nobody knows how much there is."""

    name: str
    owner: int
    started: float
    total: int | None = None
    done: int = 0
    detail: str = ""

    def __str__(self) -> str:
        count = "" if self.total is None else f" {self.done}/{self.total}"
        return f"{self.name}{count} {self.detail}".rstrip()


class Screen(Protocol):
    """Where rows are drawn."""

    def show(self, rows: Sequence[ProgressRow]) -> None: ...

    def close(self) -> None: ...


@contextmanager
def phase(name: str) -> Iterator[None]:
    """A part of a compilation, such as ``recipe``; phases inside of it are its parts."""
    row = _board.open(name)
    try:
        yield
    finally:
        _board.close(row)


def kernels(total: int) -> ProgressCounter:
    """How many kernels of the phase at hand are compiled: ``with kernels(n) as compiled: ... compiled.advance()``."""
    return ProgressCounter("build", total, "kernels")


def parts(total: int, unit: str) -> ProgressCounter:
    """How much of something else is done, such as measuring."""
    return ProgressCounter("work", total, unit)


def steps(total: int) -> ProgressCounter:
    """How many steps of the recipe at hand are done."""
    return ProgressCounter("recipe", total)


@contextmanager
def watch(see: Callable[[Sequence[ProgressRow]], None]) -> Iterator[None]:
    """Call ``see`` with what is under way in this thread, whenever that changes; it must not take long."""
    me = threading.get_ident()
    _board.watchers[me] = see
    try:
        yield
    finally:
        _board.watchers.pop(me, None)  # a fork has another board


class ProgressCounter:
    """Counts in the innermost phase of its thread, or in one of its own. Any thread may advance it."""

    def __init__(self, name: str, total: int, unit: str = ""):
        self._name, self._total, self._unit = name, total, unit
        self._own: ProgressRow | None = None

    def __enter__(self) -> ProgressCounter:
        row = _board.innermost()
        if row is None:
            row = self._own = _board.open(self._name)
        self._row = row
        _board.begin(row, self._total, self._unit)
        return self

    def advance(self, detail: str = "") -> None:
        """One more is done."""
        _board.reach(self._row, self._row.done + 1, detail or self._unit)

    def reach(self, count: int) -> None:
        """So many are done."""
        _board.reach(self._row, count, self._unit)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._own is not None:
            _board.close(self._own)


class _Board:
    """All that is under way in this process, and the screen that shows it. Safe among threads."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._rows: list[ProgressRow] = []
        self._timer: threading.Timer | None = None
        self._screen: Screen | None = None
        self._parts: dict[int, list[str]] = {}
        self.watchers: dict[int, Callable[[Sequence[ProgressRow]], None]] = {}  # by thread

    def open(self, name: str) -> ProgressRow:
        row = ProgressRow(name, threading.get_ident(), time.perf_counter())
        with self._lock:
            self._rows.append(row)
            if self._timer is None and is_watched():
                self._timer = threading.Timer(DELAY, self._begin)
                self._timer.daemon = True
                self._timer.start()
            self._show(row)
        return row

    def close(self, row: ProgressRow) -> None:
        with self._lock:
            if row not in self._rows:  # opened before a fork
                return
            self._rows.remove(row)
            outer = self.innermost()
            self._report(row, outer)
            if self._rows:
                self._show(row)
                return
            if self._timer is not None:
                self._timer.cancel()
            if self._screen is not None:
                self._screen.close()
            self._timer = self._screen = None

    def innermost(self) -> ProgressRow | None:
        """The latest phase of this thread."""
        with self._lock:
            me = threading.get_ident()
            return next((row for row in reversed(self._rows) if row.owner == me), None)

    def begin(self, row: ProgressRow, total: int, detail: str) -> None:
        with self._lock:
            row.total, row.done, row.detail = total, 0, detail
            self._show(row)

    def reach(self, row: ProgressRow, count: int, detail: str) -> None:
        with self._lock:
            row.done, row.detail = count, detail
            self._show(row)

    def _report(self, row: ProgressRow, outer: ProgressRow | None) -> None:
        """Keep what a part took for the line of its whole, or write that line."""
        text = f"{row.name} {time.perf_counter() - row.started:.2f} s"
        inside = self._parts.pop(id(row), [])
        line = f"{text} ({', '.join(inside)})" if inside else text
        if outer is None:
            logger.info("%s", line)
        else:
            self._parts.setdefault(id(outer), []).append(line)

    def _begin(self) -> None:
        """Draw from now on; runs in the timer's thread, which also pays for importing what draws."""
        try:
            screen: Screen = _Notebook() if in_notebook() else _Terminal()
        except ImportError:
            return
        with self._lock:
            if not self._rows or self._timer is not threading.current_thread():
                screen.close()
                return
            self._screen = screen
            screen.show(self._rows)

    def _show(self, changed: ProgressRow) -> None:
        if (see := self.watchers.get(changed.owner)) is not None:
            see([row for row in self._rows if row.owner == changed.owner])
        if self._screen is not None:
            self._screen.show(self._rows)


class _Terminal:
    """Bars of rich on stderr, gone when all is done."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(bar_width=30), TimeElapsedColumn()
        self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
        self._tasks: dict[ProgressRow, Any] = {}

    def show(self, rows: Sequence[ProgressRow]) -> None:
        if not self._bar.live.is_started:
            self._bar.start()
        for row in [row for row in self._tasks if row not in rows]:
            self._bar.remove_task(self._tasks.pop(row))
        for row in rows:
            if row not in self._tasks:
                self._tasks[row] = self._bar.add_task(row.name, total=row.total)
            text = str(row).replace("[", "\\[")  # rich would take it for markup
            self._bar.update(self._tasks[row], total=row.total, completed=row.done, description=text)

    def close(self) -> None:
        self._bar.stop()


class _Notebook:
    """One line below the cell, rewritten at most ten times a second."""

    def __init__(self) -> None:
        from IPython.display import display

        self._handle = display({"text/plain": ""}, raw=True, display_id=True)
        self._latest = 0.0

    def show(self, rows: Sequence[ProgressRow]) -> None:
        if time.perf_counter() - self._latest < 0.1:
            return
        self._latest = time.perf_counter()
        self._write(", ".join(map(str, rows)))

    def close(self) -> None:
        self._write("")

    def _write(self, text: str) -> None:
        self._handle.update({"text/plain": text}, raw=True)


def is_watched() -> bool:
    """Is there a terminal or a notebook to draw on?"""
    terminal = sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    return terminal or in_notebook()


def in_notebook() -> bool:
    """Does this code run in a Jupyter kernel?"""
    package = sys.modules.get("IPython")
    shell = package.get_ipython() if package is not None and hasattr(package, "get_ipython") else None
    return type(shell).__name__ == "ZMQInteractiveShell"


_board = _Board()


def _after_fork() -> None:
    """Another thread of the parent may have held the lock, and its timer and screen are not here."""
    global _board
    _board = _Board()


os.register_at_fork(after_in_child=_after_fork)

"""A stop-watch for the parts of a call, which are nested: each moment belongs to the innermost part that has begun."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from typing import Any

WATCH = "the watch"
"""A part that belongs to nobody's call: work for the measurement."""
_TRIALS = 200  # of a part without contents, whose time is that of the watch


class PartClock:
    """Nanoseconds that a call spends in its parts; without a call that is timed, functions run as they are."""

    def __init__(self) -> None:
        self._spent: defaultdict[str, float] = defaultdict(float)
        self._entered: Counter[str] = Counter()  # how often a part began
        self._around: Counter[str] = Counter()  # how often another one began in it
        self._open: list[str] = []
        self._since = 0
        self._own = (0.0, 0.0)  # of the watch itself, in a part and in the one around it
        self._own = self._calibrate()

    def time(self, part: str, call: Callable[[], Any]) -> Mapping[str, float]:
        """The nanoseconds of one call by its parts, those of the watch itself taken away; ``part``: what is none."""
        self._spent.clear()
        self._entered.clear()
        self._around.clear()
        self._open = [part]
        self._since = time.perf_counter_ns()
        try:
            call()
            self._spent[self._open[-1]] += time.perf_counter_ns() - self._since
        finally:
            self._open = []
        inside, around = self._own
        return {
            name: max(0.0, spent - inside * self._entered[name] - around * self._around[name])
            for name, spent in self._spent.items()
            if name != WATCH
        }

    def wrap(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """``function``, whose calls are ``part``."""

        def run(*args: object, **kwargs: object) -> object:
            if not self._open:
                return function(*args, **kwargs)
            self._begin(part)
            try:
                return function(*args, **kwargs)
            finally:
                self._end()

        return run

    def move(self, part: str, times: Mapping[str, float]) -> None:
        """What was timed otherwise of a part is taken from it, and given to these."""
        for name, spent in times.items():
            self._spent[name] += spent
        self._spent[part] -= sum(times.values())

    def _begin(self, part: str) -> None:
        now = time.perf_counter_ns()
        around = self._open[-1]
        self._spent[around] += now - self._since
        self._around[around] += 1
        self._entered[part] += 1
        self._open.append(part)
        self._since = time.perf_counter_ns()  # the watch's own work is of no part

    def _end(self) -> None:
        now = time.perf_counter_ns()
        self._spent[self._open.pop()] += now - self._since
        self._since = time.perf_counter_ns()

    def _calibrate(self) -> tuple[float, float]:
        empty = self.wrap("inside", lambda: None)

        def call() -> None:
            for _ in range(_TRIALS):
                empty()

        fastest = min((self.time("around", call) for _ in range(5)), key=lambda times: sum(times.values()))
        return fastest["inside"] / _TRIALS, fastest["around"] / _TRIALS

"""Nested parts: each moment belongs to the innermost one."""

from __future__ import annotations

import time

import pytest

from daceopt.modules.part_clock import WATCH, PartClock


def _busy(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def test_each_moment_belongs_to_the_innermost_part() -> None:
    clock = PartClock()
    inner = clock.wrap("inner", lambda: _busy(0.02))

    def outer() -> None:
        _busy(0.01)
        inner()
        inner()

    start = time.perf_counter()
    spent = clock.time("rest", clock.wrap("outer", outer))
    whole = (time.perf_counter() - start) * 1e9
    assert spent.keys() == {"rest", "outer", "inner"}
    assert spent["inner"] > spent["outer"] > spent["rest"]
    assert 0.9 * whole < sum(spent.values()) <= whole


def test_what_was_timed_otherwise_and_the_watch_itself() -> None:
    clock = PartClock()
    part = clock.wrap("part", lambda: _busy(0.01))

    def call() -> None:
        part()
        clock.move("part", {"a share": 4e6})

    spent = clock.time("rest", clock.wrap(WATCH, call))
    assert WATCH not in spent and spent["a share"] == 4e6 and spent["part"] >= 5.9e6


def test_nothing_is_timed_outside_of_a_call_and_errors_pass() -> None:
    clock = PartClock()
    assert clock.wrap("part", lambda x, y=0: x + y)(1, y=2) == 3

    def wrong() -> None:
        raise ValueError("wrong")

    with pytest.raises(ValueError, match="wrong"):
        clock.time("rest", clock.wrap("part", wrong))
    assert clock.time("rest", lambda: None).keys() == {"rest"}

"""Small values in the cache."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from daceopt.store.cache import key
from daceopt.store.values import Values


@dataclass(frozen=True)
class Point:
    x: float
    name: str


POINTS = Values("point", lambda fields: Point(**fields))


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DACEOPT_CACHE_DIR", str(tmp_path))


def test_the_last_one_is_there() -> None:
    assert POINTS.find(key("a")) is None
    for x in (1.0, 2.5):
        POINTS.keep(key("a"), Point(x, "é"))
        assert POINTS.find(key("a")) == Point(x, "é")
    assert POINTS.find(key("b")) is None


def test_computed_once() -> None:
    assert POINTS.make(key("a"), lambda: Point(1.0, "a")) == Point(1.0, "a")
    assert POINTS.make(key("a"), lambda: pytest.fail("computed twice")) == Point(1.0, "a")


def test_what_is_no_value_is_absent() -> None:
    Values("point", dict).keep(key("a"), {"z": 1.0})
    assert POINTS.find(key("a")) is None
    assert POINTS.make(key("a"), lambda: Point(1.0, "a")) == Point(1.0, "a")

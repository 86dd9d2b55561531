"""The machine's limits: plausible, kept, and never lowered by a busy moment."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from daceopt.cost import machine
from daceopt.cost.machine import Machine
from daceopt.store import values
from daceopt.store.cache import Cache

MACHINE = Machine("test", 2, 32 << 10, 1 << 20, 8 << 20, ((1 << 20, 100e9), (1 << 30, 10e9)), 1e12)


def test_limits_are_plausible() -> None:
    found = machine.measure(2)
    assert found.cache_bandwidth >= found.memory_bandwidth > 1e8 and found.flops > 1e8
    assert all(a[0] < b[0] and a[1] >= b[1] for a, b in zip(found.bandwidths, found.bandwidths[1:]))


def test_the_bound_is_that_of_the_level_that_holds_the_data() -> None:
    assert MACHINE.seconds(1 << 20, 0) == (1 << 20) / 100e9
    assert MACHINE.seconds((1 << 20) + 1, 0) == ((1 << 20) + 1) / 10e9
    assert MACHINE.seconds(1 << 40, 0) == (1 << 40) / 10e9
    assert MACHINE.seconds(0, 1e9) == 1e-3 and MACHINE.seconds(0, 1e9, itemsize=8) == 2e-3


def test_the_best_measurement_stays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    store = Cache(tmp_path / "cache")
    monkeypatch.setattr(values, "default_cache", lambda: store)
    fast, slow = MACHINE, replace(MACHINE, bandwidths=((1 << 20, 120e9), (1 << 30, 5e9)), flops=1e11)
    for measured, expected in (
        (fast, fast),
        (slow, replace(fast, bandwidths=((1 << 20, 120e9), (1 << 30, 10e9)))),
    ):
        monkeypatch.setattr(machine, "measure", lambda cores, measured=measured: measured)
        machine.this_machine.cache_clear()
        assert machine.this_machine() == expected
    machine.this_machine.cache_clear()

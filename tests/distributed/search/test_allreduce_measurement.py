from __future__ import annotations

import pytest

from daceopt.distributed.search import allreduce_measurement
from daceopt.distributed.search.allreduce_measurement import on_this_machine
from daceopt.distributed.search.allreduce_time import AllReduceTime


def test_two_processes_are_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    found = on_this_machine(2)
    assert found.world == 2
    assert found.per_byte > 0
    assert 0 <= found.overhead < 1
    assert found.beside is not None and found.processor is not None
    assert found.taken_seconds(1 << 20) <= found.beside_computing(1 << 20)
    monkeypatch.setattr(allreduce_measurement, "_spawn", lambda world: pytest.fail("measured again"))
    assert on_this_machine(2) == found


def test_a_world_of_one_needs_no_processes() -> None:
    assert on_this_machine(1) == AllReduceTime(1, 0.0, 0.0)

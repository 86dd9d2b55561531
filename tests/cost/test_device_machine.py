"""The limits of a device: measured by its own clock, kept by its name and the user's switches."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from daceopt.cost import device_machine, machine
from daceopt.cost.device_machine import machine_of
from daceopt.cost.machine import Machine
from daceopt.cost.measure import Elapsed
from daceopt.store import values
from daceopt.store.cache import Cache

DEVICE = Machine("NVIDIA", 0, 0, 50 << 20, 0, ((6 << 20, 8e12), (400 << 20, 3e12)), 5e13, ((2, 7e14), (8, 6e13)))
HOST = torch.device("cpu")


def test_each_kind_of_element_has_its_rate() -> None:
    assert (DEVICE.rate(), DEVICE.rate(2), DEVICE.rate(8), DEVICE.rate(1)) == (5e13, 7e14, 6e13, 5e13)
    assert DEVICE.seconds(0, 7e14, 2) == 1 and DEVICE.seconds(0, 5e13) == 1 and DEVICE.seconds(3e12, 0) == 1
    assert DEVICE.raise_to(1e15, 2) == replace(DEVICE, rates=((2, 1e15), (8, 6e13)))
    assert DEVICE.raise_to(1e15) == replace(DEVICE, flops=1e15) and DEVICE.raise_to(1e3, 8) == DEVICE
    faster = replace(DEVICE, rates=((2, 8e14), (8, 1e13)))
    assert DEVICE.best(faster).rates == ((2, 8e14), (8, 6e13))


def test_what_is_kept_of_a_device_is_read_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    store = Cache(tmp_path / "cache")
    monkeypatch.setattr(values, "default_cache", lambda: store)
    assert machine.best_known(["NVIDIA", True], DEVICE) == DEVICE
    slow = replace(DEVICE, flops=1.0, rates=((2, 1.0), (8, 7e13)))
    assert machine.best_known(["NVIDIA", True], slow) == replace(DEVICE, rates=((2, 7e14), (8, 7e13)))
    assert machine.best_known(["NVIDIA", False], slow) == slow


def test_the_host_is_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_machine, "this_machine", lambda: DEVICE)
    assert machine_of(HOST) is DEVICE


def test_rates_are_bytes_and_operations_by_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    def on_stream(call: Callable[[], Any], ahead: bool, device: torch.device) -> Callable[[], Elapsed]:
        def timed() -> Elapsed:
            call()
            return Elapsed(0.5)

        assert ahead and device == HOST
        return timed

    monkeypatch.setattr(device_machine, "on_stream", on_stream)
    monkeypatch.setattr(device_machine, "_GEMM", 8)
    monkeypatch.setattr(time, "perf_counter", iter(range(100)).__next__)
    assert device_machine._copy_bandwidth(400, HOST) == 2 * 400 * device_machine._COPIES / 0.5
    assert device_machine._gemm_rate(torch.bfloat16, HOST) == 2 * 8**3 / 0.5


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")
def test_the_limits_of_a_device_are_plausible() -> None:
    place, before = torch.device("cuda", torch.cuda.current_device()), torch.cuda.get_rng_state()
    found = machine_of(place)
    assert found.is_device and found.name == torch.cuda.get_device_name(place)
    assert found.cache_bandwidth >= found.memory_bandwidth > 1e11 and found.flops > 1e12
    assert found.rate(2) > found.flops / 2 and found.rate(8) > 1e11
    assert machine_of(torch.device("cuda")) is found and torch.equal(torch.cuda.get_rng_state(), before)

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daceopt.distributed.allreduce_time import AllReduceTime, bandwidth_of, duration_of
from daceopt.errors import DaceoptError


@given(st.integers(0, 1000), st.integers(0, 1000), st.integers(1, 1000))
def test_a_line_is_found_again_in_spite_of_outliers(slope: int, overhead: int, unit: int) -> None:
    per_byte, start = slope * 1e-12, overhead * 1e-6
    samples = [(unit << k, per_byte * (unit << k) + start) for k in range(9)]
    samples[0] = (samples[0][0], samples[0][1] + 1.0)  # somebody else had the machine
    found = AllReduceTime.fitted(2, samples)
    assert found.per_byte == pytest.approx(per_byte, rel=1e-6, abs=1e-16)
    assert found.overhead == pytest.approx(start, rel=1e-6, abs=1e-9)


def test_a_ring_sends_nearly_everything_twice() -> None:
    found = AllReduceTime.ring(4, 10e9, 50e-6)
    assert found.seconds(10**9) == pytest.approx(2 * 3 / 4 * 8e9 / 10e9 + 6 * 50e-6)
    assert AllReduceTime.ring(1, 10e9).seconds(10**9) == 0


def test_what_a_reduction_takes_from_computing() -> None:
    times = [(1 << k, 2e-9 * (1 << k) + 1e-4) for k in range(9)]
    taken = [(n, 5e-10 * n + 3e-5) for n, _ in times]
    found = AllReduceTime.fitted(2, times, taken)
    assert found.processor == pytest.approx(5e-10) and found.per_byte == pytest.approx(2e-9)
    assert AllReduceTime.fitted(2, times).processor == 0
    assert AllReduceTime.fitted(2, times, times).processor == found.per_byte  # no more than it takes
    assert AllReduceTime.ring(2, 8e9, processor=3e-9).seconds(1e9) == pytest.approx(3.0)
    with pytest.raises(DaceoptError, match="cannot take"):
        AllReduceTime(2, 1e-9, 0.0, -1.0)


@pytest.mark.parametrize(("text", "value"), [("10Gbit", 1e10), ("800 mbit/s", 8e8), ("1.5Gbit", 1.5e9)])
def test_bandwidths(text: str, value: float) -> None:
    assert bandwidth_of(text) == pytest.approx(value)


@pytest.mark.parametrize(("text", "value"), [("50us", 5e-5), ("2 ms", 2e-3), ("60s", 60.0)])
def test_durations(text: str, value: float) -> None:
    assert duration_of(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["", "10", "fast", "-1Gbit", "10Gb", "1e9bit", "10Gbit; rm"])
def test_what_is_no_bandwidth(text: str) -> None:
    with pytest.raises(DaceoptError, match="is not a bandwidth"):
        bandwidth_of(text)


def test_what_no_link_is() -> None:
    for make in (
        lambda: AllReduceTime(0, 1.0, 1.0),
        lambda: AllReduceTime(2, float("nan"), 1.0),
        lambda: AllReduceTime.ring(2, 0.0),
        lambda: AllReduceTime.fitted(2, [(8, 1.0), (8, 2.0)]),
    ):
        with pytest.raises(DaceoptError):
            make()

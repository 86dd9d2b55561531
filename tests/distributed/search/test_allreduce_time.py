from __future__ import annotations

import json
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daceopt.distributed.search.allreduce_time import AllReduceTime, LinearTime, bandwidth_of, duration_of
from daceopt.errors import DaceoptError


@given(st.integers(0, 1000), st.integers(0, 1000), st.integers(1, 1000))
def test_a_line_is_found_again_in_spite_of_outliers(slope: int, overhead: int, unit: int) -> None:
    per_byte, start = slope * 1e-12, overhead * 1e-6
    samples = [(unit << k, per_byte * (unit << k) + start) for k in range(9)]
    samples[0] = (samples[0][0], samples[0][1] + 1.0)  # somebody else had the machine
    found = LinearTime.through(samples)
    assert found.per_byte == pytest.approx(per_byte, rel=1e-6, abs=1e-16)
    assert found.overhead == pytest.approx(start, rel=1e-6, abs=1e-9)


def test_a_ring_sends_nearly_everything_twice() -> None:
    found = AllReduceTime.ring(4, 10e9, 50e-6)
    assert found.seconds(10**9) == pytest.approx(2 * 3 / 4 * 8e9 / 10e9 + 6 * 50e-6)
    assert AllReduceTime.ring(1, 10e9).seconds(10**9) == 0


def test_what_a_reduction_takes_beside_computing() -> None:
    found = AllReduceTime(2, 1.0, 0.5, LinearTime(2.0, 0.25), LinearTime(0.5, 1.0))
    assert found.seconds(4) == 4.5
    assert (found.beside_computing(4), found.beside_computing(0)) == (8.25, 0.5)  # no less than alone
    assert (found.taken_seconds(4), found.taken_seconds(0)) == (3.0, 0.5)  # no more than it takes
    assert (AllReduceTime(2, 1.0, 0.5).beside_computing(4), AllReduceTime(2, 1.0, 0.5).taken_seconds(4)) == (4.5, 0.0)
    single = AllReduceTime(1, 1.0, 0.5, LinearTime(2.0, 0.25), LinearTime(0.5, 1.0))
    assert (single.seconds(4), single.beside_computing(4), single.taken_seconds(4)) == (0.0, 0.0, 0.0)
    assert AllReduceTime.of_fields(json.loads(json.dumps(asdict(found)))) == found
    assert AllReduceTime.of_fields(asdict(AllReduceTime.ring(4, 1e9))) == AllReduceTime.ring(4, 1e9)
    assert str(found).endswith("of which a core that computes works 500000000.000 ns a byte and 1000000 us a call")


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
        lambda: AllReduceTime(2, 1e-9, 0.0, LinearTime(1.0, float("inf"))),
        lambda: AllReduceTime(2, 1e-9, 0.0, None, LinearTime(-1.0, 0.0)),
        lambda: LinearTime.through([(8, 1.0), (8, 2.0)]),
    ):
        with pytest.raises(DaceoptError):
            make()

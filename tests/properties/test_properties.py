"""Thousands of random operators against ONNX Runtime and float64."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.properties import dense, elementwise, movement, quantized, selection, sequences, transforms
from tests.properties.cases import Case
from tests.properties.checking import failures

FAMILIES = {
    name: make
    for module in (dense, elementwise, movement, quantized, selection, sequences, transforms)
    for name, make in vars(module).items()
    if getattr(make, "__module__", "") == module.__name__ and not name.startswith("_") and callable(make)
}
FEW, MANY = 8, 170


def draw(strategy: st.SearchStrategy[Case], count: int) -> list[Case]:
    """The same ``count`` cases each time."""
    cases: list[Case] = []

    @settings(
        max_examples=count,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def collect(case: Case) -> None:
        cases.append(case)

    collect()
    return cases


@pytest.mark.share(3)
@pytest.mark.parametrize("count", [FEW, pytest.param(MANY, marks=pytest.mark.onnx)])
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_random_operators(family: str, count: int) -> None:
    cases = draw(FAMILIES[family](), count)
    found = failures(cases)
    assert len(cases) >= count // 2
    assert not found, f"{len(found)} of {len(cases)} cases:\n" + "\n".join(found[:5])


@pytest.mark.onnx
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_sizes_known_at_run_time(family: str) -> None:
    cases = draw(FAMILIES[family](), 6 * FEW)
    found = failures(cases, open_sizes=True)
    assert not found, f"{len(found)} of {len(cases)} cases:\n" + "\n".join(found[:5])


def test_there_are_ten_thousand_cases() -> None:
    assert MANY * len(FAMILIES) >= 10_000

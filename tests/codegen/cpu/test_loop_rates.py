"""Loops that are timed: each unit of the model has one, and without a compiler there are none."""

from __future__ import annotations

import pytest

from daceopt.codegen.cpu import loop_rates
from daceopt.cost.rates import LOOPS
from daceopt.errors import BuildError


def test_every_unit_is_measured() -> None:
    found = loop_rates.measure()
    assert found is not None and found.keys() == dict(LOOPS).keys()
    assert all(1e-14 < seconds < 1e-3 for seconds in found.values())


@pytest.mark.parametrize("error", [BuildError("no compiler"), OSError("a folder from which nothing is loaded")])
def test_without_a_compiler_nothing_is(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr(loop_rates, "_library", fail)
    assert loop_rates.measure() is None

"""Random graphs through the recipes ``cpu`` and ``apollo``, compiled, forward and backward, against float64."""

from __future__ import annotations

import pytest

from tests.properties.graph_checking import Case, failures

BATCH = 25  # graphs compiled together
DEFAULT = [("small", True, 1), ("large", True, 2), ("empty", True, 3), ("open", True, 4)]
LONG = [
    (kind, backward, k) for kind in ("small", "large", "empty", "open") for backward in (False, True) for k in range(20)
]


@pytest.mark.parametrize(("kind", "backward", "batch"), DEFAULT)
def test_random_graphs(kind: str, backward: bool, batch: int) -> None:
    _check(kind, backward, batch, count=BATCH // 4)


@pytest.mark.fuzz
@pytest.mark.parametrize(("kind", "backward", "batch"), LONG)
def test_thousands_of_random_graphs(kind: str, backward: bool, batch: int) -> None:
    _check(kind, backward, batch)


@pytest.mark.fuzz
@pytest.mark.parametrize("kind", ["small", "large", "empty", "open"])
@pytest.mark.parametrize("batch", range(5))
def test_random_graphs_that_are_partitioned(kind: str, batch: int) -> None:
    _check(kind, True, batch, "apollo")


def _check(kind: str, backward: bool, batch: int, recipe: str = "cpu", count: int = BATCH) -> None:
    cases = [Case(seed, kind, backward) for seed in range(batch * BATCH, batch * BATCH + count)]
    found = failures(cases, recipe)
    assert not found, f"{len(found)} of {len(cases)} graphs:\n" + "\n".join(found[:5])


def test_there_are_thousands_of_graphs() -> None:
    assert BATCH * len(LONG) >= 3000

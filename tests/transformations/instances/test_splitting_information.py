"""Algorithm 1 and equation 1 on numbers."""

from __future__ import annotations

from dataclasses import replace

from tests.transformations.instances.machines import tiny
from transformations.instances._splitting_information import (
    Budget,
    Way,
    best_of,
    factors,
    finer,
    footprint,
    information,
)


def _best(ways: dict[str, Way], peak: int, size: int, clusters: int = 1):  # type: ignore[no-untyped-def]
    return best_of(information(ways, peak, 3, Budget(tiny(size, clusters=clusters), "local")).values())


def test_factors_balance_the_cores() -> None:
    assert factors(16, 8) == [1, 2, 4, 8, 16]
    assert factors(18, 8) == [1, 2, 9, 18]  # 3 and 6 of 8 cores would leave some without work
    assert factors(12, 2) == [1, 2, 3, 4, 6, 12]
    assert factors(256, 132) == [1, 2, 4, 8, 16, 32, 64, 128, 256]  # 132 has few divisors itself
    assert factors(1, 8) == [1]


def test_the_smallest_factor_that_fits() -> None:
    way = Way(16, 0, 0.0, 0)
    assert _best({"batch": way}, 1024, 1024).factor == 1
    assert _best({"batch": way}, 1025, 1024).factor == 2
    assert _best({"batch": way}, 4096, 1024).factor == 4
    assert _best({"batch": way}, 1024 * 16 + 1, 1024) is None


def test_equation_1_takes_the_smaller_factor_then_the_outer_axis() -> None:
    ways = {"rows": Way(100, 1, 0.0, 0), "batch": Way(16, 0, 0.0, 0)}
    assert _best(ways, 10 * 1024, 1024).way == "rows"  # 10 instances, not 16
    assert _best(ways, 4 * 1024, 1024).way == "batch"  # 4 of both


def test_an_axis_without_halo_comes_first() -> None:
    ways = {"rows": Way(100, 1, 0.01, 0), "batch": Way(16, 0, 0.0, 0)}
    assert _best(ways, 10 * 1024, 1024).way == "batch"
    assert _best({"rows": ways["rows"]}, 10 * 1024, 1024).factor == 20  # (1/20 + 1/100) of it fits, (1/10 + 1/100) not


def test_clusters_share_the_axis_first() -> None:
    found = _best({"batch": Way(16, 0, 0.0, 0)}, 8 * 1024, 1024, clusters=4)
    assert (found.clusters, found.factor, found.footprint) == (4, 2, 1024)
    assert _best({"batch": Way(6, 0, 0.0, 0)}, 2048, 1024, clusters=4).clusters == 1  # 4 do not divide it


def test_what_every_instance_reads_does_not_shrink() -> None:
    assert footprint(Way(8, 0, 0.0, 600), 1000, 4) == 700
    assert _best({"rows": Way(8, 0, 0.0, 900)}, 1024, 1024).factor == 1
    assert _best({"rows": Way(8, 0, 0.0, 900)}, 2048, 1024) is None


def test_what_no_axis_divides_may_fit_as_a_whole() -> None:
    found = _best({}, 1024, 1024)
    assert (found.factor, found.axis) == (1, -1)


def test_finer_is_the_next_factor_that_is_at_least_twice_as_large() -> None:
    budget, way = Budget(tiny(1024), "local"), Way(18, 0, 0.0, 0)
    split = best_of(information({"batch": way}, 1536, 3, budget).values())
    assert split is not None and split.factor == 2
    found = finer(split, way, 1536, budget)
    assert found == replace(split, factor=9, footprint=footprint(way, 1536, 9))
    whole = finer(found, way, 1536, budget)
    assert whole is not None and whole.factor == 18 and finer(whole, way, 1536, budget) is None
    assert finer(split, replace(way, halo=0.01), 1536, budget) is None  # neighbours would share more

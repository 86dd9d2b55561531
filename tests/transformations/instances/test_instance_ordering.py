"""Orders of instances: those of GraphTurbo's figures, and the best one."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from daceopt.errors import DaceoptError
from tests.transformations.instances.graphs_of import assert_same, letters, split, values
from tests.transformations.instances.machines import tiny
from tests.transformations.instances.networks import resnet, stages
from transformations.instances._order_program import solve
from transformations.instances._orders import HEURISTICS
from transformations.instances._units import Units, breadth_first, units_of
from transformations.instances.instance_ordering import InstanceOrdering


def test_figure_7a_breadth_first() -> None:
    graph = split(stages(), tiny(512))
    InstanceOrdering(by="bfs").run(graph)
    assert letters(graph) == "a1 a2 a3 a4 a5 a6 a7 a8 b1 b2 b3 b4 c1 c2 d1"


def test_figures_3b_and_7f_depth_first() -> None:
    """Figure 3(b): 1 2 (stage 1), 3 (stage 2), 4 5, 6, 7 (stage 3), 8 9, 10, 11 12, 13, 14 (stage 3), 15 (stage 4)."""
    graph = split(stages(), tiny(512))
    InstanceOrdering(by="dfs").run(graph)
    assert letters(graph) == "a8 a7 b4 a6 a5 b3 c2 a4 a3 b2 a2 a1 b1 c1 d1"


def test_the_first_steps_of_figure_7_are_those_of_algorithm_3() -> None:
    """A search through the lists, as the algorithm is printed, finds the same order as the heap."""
    for seed in range(50):
        units = _random(np.random.default_rng(seed), 12)
        assert HEURISTICS["dfs"](units) == _algorithm_3(units)


def _algorithm_3(units: Units) -> list[int]:
    indegree = list(units.before)
    visit, ready, order = list(range(units.count)), [], []
    while visit or ready:
        ready += [k for k in visit if not indegree[k]]
        visit = [k for k in visit if k not in ready]
        while ready:
            p = len(ready) - 1
            while indegree[ready[p]]:
                p -= 1
            unit = ready.pop(p)
            order.append(unit)
            for other in [*visit, *ready]:
                if other in units.after[unit]:
                    indegree[other] -= 1
                    if other in visit:
                        ready.append(other)
            visit = [k for k in visit if k not in ready]
    return order


def test_best_is_the_heuristic_of_the_lowest_peak() -> None:
    graph = split(stages(), tiny(512))
    (site,) = InstanceOrdering().run(graph).sites
    assert site == "dfs: 1280 bytes alive at most (bfs 1536, dfs 1280, footprint 1280)"


@pytest.mark.parametrize("by", ["bfs", "dfs", "footprint", "best", "optimal"])
def test_any_order_computes_the_same(by: str) -> None:
    graph = split(resnet(4, (1, 1), 4, 16), tiny(3000))
    expected = values(graph)
    InstanceOrdering(by=by, seconds=2.0).run(graph)
    graph.validate()
    assert_same(graph, expected)


def test_an_unknown_order_is_an_error() -> None:
    with pytest.raises(DaceoptError, match="expected one of bfs, dfs, footprint, optimal, best"):
        InstanceOrdering(by="fastest").run(stages())


# ---------------------------------------------------------------- the integer program


def _random(rng: np.random.Generator, count: int) -> Units:
    """Units in a breadth-first order, each of which writes one buffer."""
    after = [[k for k in range(u + 1, count) if rng.random() < 0.3] for u in range(count)]
    place = {u: k for k, u in enumerate(breadth_first(after))}
    after = [sorted(place[v] for v in after[u]) for u in place]
    touched = [[f"b{u}"] + [f"b{v}" for v in range(u) if u in after[v]] for u in range(count)]
    used = {name for names in touched for name in names if sum(name in other for other in touched) > 1}
    sizes = {name: int(rng.integers(1, 9)) for name in sorted(used)}
    inner = [int(rng.integers(0, 5)) for _ in range(count)]
    return Units([[k] for k in range(count)], after, [[n for n in t if n in used] for t in touched], inner, sizes)


def _best_of_all(units: Units) -> int:
    legal = (o for o in permutations(range(units.count)) if _is_legal(units, o))
    return min(units.peak(order) for order in legal)


def _is_legal(units: Units, order: tuple[int, ...] | list[int]) -> bool:
    place = {u: k for k, u in enumerate(order)}
    return all(place[u] < place[v] for u in range(units.count) for v in units.after[u])


@pytest.mark.parametrize("seed", range(12))
def test_the_program_finds_what_trying_all_orders_finds(seed: int) -> None:
    units = _random(np.random.default_rng(seed), 6)
    start = HEURISTICS["bfs"](units)
    found = solve(units, start, 20.0, 10_000)
    assert _is_legal(units, found.order) and found.is_optimal
    assert found.peak == units.peak(found.order) == _best_of_all(units) == found.bound <= units.peak(start)


@pytest.mark.parametrize("seconds", [0.0, 0.2])
def test_what_is_not_solved_in_time_is_no_worse_than_its_start(seconds: float) -> None:
    units = _random(np.random.default_rng(7), 24)
    start = HEURISTICS["dfs"](units)
    found = solve(units, start, seconds, 10_000)
    assert _is_legal(units, found.order)
    assert max(units.weights) <= found.bound <= found.peak <= units.peak(start)


def test_a_program_that_is_too_large_is_not_tried() -> None:
    units = _random(np.random.default_rng(1), 24)
    start = HEURISTICS["bfs"](units)
    found = solve(units, start, 5.0, 100)
    assert found.order == start and found.bound == max(units.weights)


def test_a_site_says_the_bound() -> None:
    graph = split(stages(), tiny(512))
    (site,) = InstanceOrdering(by="optimal", seconds=30.0).run(graph).sites
    assert site.startswith("optimal: 1280 bytes") and "proved" in site


def test_units_are_instances_and_their_memory() -> None:
    units = units_of(split(stages(), tiny(512)))
    assert units.count == 15 and [len(m) for m in units.members] == [3] * 8 + [2] * 4 + [2] * 2 + [1]
    assert units.inner[0] == 2 * 256 and units.weights[0] == 2 * 256 + 2 * 128  # both rows, and the pair that b1 reads

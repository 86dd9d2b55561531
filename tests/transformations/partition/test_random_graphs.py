"""Random graphs of up to 60 steps, partitioned by the steps of the recipe, against the graphs as they were."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from daceopt import recipes
from daceopt.ir.fusion import fusion_profit
from daceopt.ir.graph.graph import Graph
from daceopt.passes.runner import Runner
from daceopt.passes.transform import Transformation
from daceopt.transformations.local.map_fusion import MapFusion
from daceopt.transformations.partition.aggregation import Aggregation
from daceopt.transformations.partition.memory_stitching import MemoryStitching
from tests.numerics import assert_within_rounding
from tests.strategies import graph_of, graphs
from tests.transformations.lowered import ULPS, compiled, values

STEPS: tuple[Transformation, ...] = (Aggregation(), MemoryStitching(), Aggregation(rules="complementary"))


def check(graph: Graph, eager: bool) -> None:
    """The partition computes the same; ``eager``: whatever is legal is merged, fast or not."""
    before = values(graph)
    with pytest.MonkeyPatch.context() as patch:
        if eager:
            patch.setattr(fusion_profit, "SMALL", 0)
            patch.setattr(fusion_profit, "unprofitable", lambda *_: None)
            patch.setattr(fusion_profit, "lost_loops", lambda *_: None)
        for step in STEPS:
            step.run(graph)
            graph.validate()
    for ours, theirs in zip(values(graph), before, strict=True):
        assert_within_rounding(ours, theirs, ulps=ULPS)


@settings(max_examples=25, suppress_health_check=list(HealthCheck))
@given(graph=graphs(), eager=st.booleans())
def test_random_graphs(graph: Graph, eager: bool) -> None:
    check(graph, eager)


@pytest.mark.fuzz
@pytest.mark.parametrize("batch", range(20))
def test_thousands_of_random_graphs(batch: int) -> None:
    for seed in range(100 * batch, 100 * (batch + 1)):
        try:
            check(graph_of(seed), eager=seed % 2 == 0)
        except Exception as error:
            raise AssertionError(f"graph_of({seed}), eager={seed % 2 == 0}: {error}") from error


def test_compiled() -> None:
    """A dozen through the whole recipe, loops included."""
    made = [graph_of(seed, most=30) for seed in range(12)]
    expected, in_float32 = [values(g) for g in made], [values(g, dtype=None) for g in made]
    for graph in made:
        Runner(recipes.get("apollo")).run(graph)
    for ours, exact, single in zip(compiled("partitioned", made), expected, in_float32, strict=True):
        for a, b, c in zip(ours, exact, single, strict=True):
            assert_within_rounding(a, b, c, ulps=64.0)


@pytest.mark.parametrize("seed", range(5))
def test_nothing_is_left_for_greedy_fusion(seed: int) -> None:
    """What map fusion would merge, some rule does."""
    graph = graph_of(1000 + seed)
    for step in STEPS:
        step.run(graph)
    assert MapFusion().run(graph).sites == []


def test_graphs_are_as_large_as_they_should_be() -> None:
    sizes = [len(graph_of(seed).nodes()) for seed in range(0, 40, 4)]
    assert max(sizes) > 25 and min(sizes) < 8
    assert np.mean(sizes) > 10

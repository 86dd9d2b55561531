"""Random graphs: every transformation of the recipe's second half keeps what they compute, interpreted and compiled."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daceopt.ir.fusion import fusion_profit
from daceopt.ir.graph.graph import Graph
from daceopt.passes.transform import Transformation
from daceopt.transformations.layout.layout_search import LayoutSearch
from daceopt.transformations.local.epilogue_fusion import EpilogueFusion
from daceopt.transformations.local.map_fusion import MapFusion
from daceopt.transformations.local.product_transposition import ProductTransposition
from daceopt.transformations.local.reduction_lowering import ReductionLowering
from daceopt.transformations.local.tasklet_fusion import TaskletFusion
from tests.numerics import assert_within_rounding
from tests.transformations.lowered import SHAPES, RandomGraph, apply, compiled, values

RECIPE: tuple[Transformation, ...] = (
    *(TaskletFusion(), LayoutSearch(), ProductTransposition(), MapFusion(), ReductionLowering(), EpilogueFusion()),
    MapFusion(),  # once more, on kernels of many stages
)
NUMBER = st.integers(0, 11)
STEPS = st.lists(st.tuples(NUMBER, NUMBER, st.integers(0, 5), st.integers(0, 5)), min_size=3, max_size=10)
INPUTS = st.lists(st.sampled_from(SHAPES), min_size=1, max_size=3)


@pytest.fixture(autouse=True)
def eager(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fuse whatever is legal, fast or not."""
    monkeypatch.setattr(fusion_profit, "SMALL", 0)
    monkeypatch.setattr(fusion_profit, "unprofitable", lambda *_: None)
    monkeypatch.setattr(fusion_profit, "lost_loops", lambda *_: None)
    yield


def transformed(graph: Graph) -> Graph:
    for step in RECIPE:
        apply(step, graph)
    return graph


@settings(max_examples=12)
@given(shapes=INPUTS, steps=STEPS)
def test_random_graphs_keep_their_values(shapes: list, steps: list) -> None:
    transformed(RandomGraph(shapes, steps).graph)


def _random_graph(seed: int) -> Graph:
    source = random.Random(seed)
    shapes = [source.choice(SHAPES) for _ in range(2)]
    steps = [(*(source.randrange(12) for _ in range(2)), source.randrange(6), source.randrange(6)) for _ in range(7)]
    return RandomGraph(shapes, steps).graph


def test_compiled_graphs_agree_with_the_interpreter() -> None:
    graphs = [_random_graph(seed) for seed in range(5)]
    expected = [values(g) for g in graphs]
    in_float32 = [values(g, dtype=None) for g in graphs]
    fused = [transformed(g) for g in graphs]
    for ours, exact, single in zip(compiled("random graphs", fused), expected, in_float32, strict=True):
        for a, b, c in zip(ours, exact, single, strict=True):
            assert_within_rounding(a, b, c, ulps=16.0)

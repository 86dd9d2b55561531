"""Exploration of fusions: what it finds that greedy fusion does not, that it is never worse, and what it refuses."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st

import daceopt.ops  # noqa: F401  (brings how operators are executed)
from daceopt.cost.kernel_time import KernelTimes
from daceopt.cost.planned_kernel import kernel_bytes
from daceopt.errors import DaceoptError, Unsupported
from daceopt.ir.fusion import fusion_profit
from daceopt.ir.graph.graph import Graph
from daceopt.ir.text.render import render
from daceopt.transformations.local._fusion_space import FusionCandidate, FusionSpace
from daceopt.transformations.local.fusion_exploration import FusionExploration
from daceopt.transformations.local.map_fusion import MapFusion
from tests.numerics import assert_within_rounding
from tests.transformations.lowered import (
    SHAPES,
    RandomGraph,
    apply,
    assert_same,
    compiled,
    finish,
    kernels,
    size_symbol,
    start,
    values,
)

NUMBER = st.integers(0, 11)
STEPS = st.lists(st.tuples(NUMBER, NUMBER, st.integers(0, 5), st.integers(0, 5)), min_size=3, max_size=10)
INPUTS = st.lists(st.sampled_from(SHAPES), min_size=1, max_size=3)


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fuse whatever is legal, fast or not."""
    monkeypatch.setattr(fusion_profit, "SMALL", 0)
    monkeypatch.setattr(fusion_profit, "unprofitable", lambda *_: None)
    monkeypatch.setattr(fusion_profit, "lost_loops", lambda *_: None)
    yield


def moved(graph: Graph) -> float:
    """Bytes that all kernels of a graph move."""
    number = KernelTimes(graph).number
    return sum(kernel_bytes(graph, kernel, number) for kernel in kernels(graph))


def softmax(rows: Any = 4) -> Graph:
    graph, b, (x,) = start((rows, 6))
    top = b.reduce("max", None, x, axes=[1], keepdims=True)
    e = b.elementwise(lambda v, m: sympy.exp(v - m), x, top)
    total = b.reduce("sum", None, e, axes=[1], keepdims=True)
    return finish(graph, b.elementwise(lambda v, s: v / s, e, total))


@pytest.mark.share(2)
@pytest.mark.parametrize("score", ["bytes", "roofline", "kernels"])
@pytest.mark.parametrize("selection", ["program", "ranked"])
def test_softmax_becomes_one_kernel_by_every_score(score: str, selection: str) -> None:
    graph, greedy = softmax(), softmax()
    apply(FusionExploration(score=score, selection=selection), graph, special=True)
    MapFusion().run(greedy)
    assert render(graph) == render(greedy)


def test_open_sizes() -> None:
    graph = softmax(size_symbol())
    apply(FusionExploration(), graph)
    assert len(graph.kernels()) == 1


@settings(max_examples=12)
@given(shapes=INPUTS, steps=STEPS)
def test_random_graphs_keep_their_values(shapes: list, steps: list) -> None:
    apply(FusionExploration(budget=16), RandomGraph(shapes, steps).graph)


def _random_graph(seed: int) -> Graph:
    source = random.Random(seed)
    shapes = [source.choice(SHAPES) for _ in range(2)]
    steps = [(*(source.randrange(12) for _ in range(2)), source.randrange(6), source.randrange(6)) for _ in range(7)]
    return RandomGraph(shapes, steps).graph


def test_never_more_bytes_than_greedy_fusion_and_at_times_less(eager: None) -> None:
    less = 0
    for seed in range(30):
        graph = _random_graph(seed)
        greedy, explored = graph.copy(), graph.copy()
        MapFusion().run(greedy)
        FusionExploration().run(explored)
        assert_same(graph, explored)
        assert moved(explored) <= moved(greedy)
        less += moved(explored) < moved(greedy)
    assert less >= 3


def test_compiled_graphs_agree_with_the_interpreter(eager: None) -> None:
    graphs = [_random_graph(seed) for seed in (9, 17, 27, 28, 42)]
    expected, single = [values(g) for g in graphs], [values(g, dtype=None) for g in graphs]
    for graph in graphs:
        FusionExploration().run(graph)
    for ours, exact, narrow in zip(compiled("explored graphs", graphs), expected, single, strict=True):
        for a, b, c in zip(ours, exact, narrow, strict=True):
            assert_within_rounding(a, b, c, ulps=16.0)


def test_the_same_on_every_run(eager: None) -> None:
    for seed in (9, 17):
        first, second = _random_graph(seed), _random_graph(seed)
        FusionExploration(score="bytes").run(first)
        FusionExploration(score="bytes").run(second)
        assert render(first) == render(second)


def test_a_larger_budget_is_no_worse(eager: None) -> None:
    for seed in range(8):
        found = []
        for budget in (1, 8, 64):
            graph = _random_graph(seed)
            FusionExploration(budget=budget).run(graph)
            found.append(moved(graph))
        assert found[2] <= found[0]


def test_equal_layers_are_explored_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def layers(count: int) -> Graph:
        graph, b, (x, w) = start((6, 6), (6, 6))
        for _ in range(count):
            x = b.matmul(x, w)
            top = b.reduce("max", None, x, axes=[1], keepdims=True)
            x = b.elementwise(lambda u, m: sympy.exp(u - m), x, top)
            x = b.elementwise(lambda u: u * 2, x)
        return finish(graph, x)

    tried: list[int] = []
    grown = FusionSpace.grow

    def counted(space: FusionSpace, candidate: FusionCandidate, k: int) -> FusionCandidate | str:
        tried.append(k)
        return grown(space, candidate, k)

    monkeypatch.setattr(FusionSpace, "grow", counted)
    graph = layers(8)
    apply(FusionExploration(), graph)
    assert len(graph.kernels()) == 8
    of_many = len(tried)
    tried.clear()
    FusionExploration().run(layers(1))
    assert of_many <= len(tried) + 2 * 7  # the others only repeat what was chosen


def test_a_function_scores() -> None:
    """The fewest statements in one kernel: nothing is fused."""
    graph = softmax()
    outcome = apply(FusionExploration(score=_alone), graph)
    assert outcome.sites == [] and len(graph.kernels()) == 4
    assert str(FusionExploration(score=_alone)) == "fusion-exploration{score=_alone}"


def _alone(candidate: FusionCandidate) -> float:
    return float(len(candidate.members)) ** 2


def test_a_path_through_a_library_node_keeps_kernels_apart() -> None:
    graph, b, (x, w) = start((4, 6), (6, 6))
    top = b.elementwise(sympy.tanh, x)
    apply(FusionExploration(), finish(graph, b.elementwise(lambda u, v: u + v, top, b.matmul(top, w))))
    assert len(graph.kernels()) == 2


def test_groups_that_would_wait_for_each_other() -> None:
    """Each pair can be one kernel, both pairs cannot: what saves less stays apart."""
    graph, b, (x, y, w) = start((6, 6), (6, 6), (6, 6))
    a, c = b.elementwise(sympy.tanh, x), b.elementwise(lambda v: v * 2, y)
    d = b.elementwise(lambda u, v: u + v, b.matmul(a, w), c)
    e = b.elementwise(lambda u, v: u - v, b.matmul(c, w), a)
    outcome = apply(FusionExploration(), finish(graph, d, e))
    assert len(outcome.sites) == 1 and len(graph.kernels()) == 3


def test_measured_times_choose() -> None:
    graph = softmax(64)
    outcome = apply(FusionExploration(score="measured", budget=4), graph)
    assert len(outcome.sites) <= 1
    with pytest.raises(Unsupported, match="only kernels over known sizes"):
        FusionExploration(score="measured").run(softmax(size_symbol()))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"score": "byts"}, "did you mean 'bytes'"),
        ({"selection": "best"}, "expected one of program, ranked"),
        ({"budget": 0}, "expected 1 or more"),
    ],
)
def test_options_that_cannot_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(DaceoptError, match=message):
        FusionExploration(**options)


@pytest.mark.parametrize("value", ["many", float("nan"), None])
def test_a_scoring_function_that_returns_no_number(value: Any) -> None:
    with pytest.raises(DaceoptError, match="expected a finite number"):
        FusionExploration(score=lambda candidate: value).run(softmax())


def test_bytes_count_what_loops_visit() -> None:
    graph, b, (x, row) = start((4, 6), (6,))
    y = b.elementwise(lambda v, r: v + r, x, row)
    corner = b.elementwise(sympy.exp, b.slice(x, [0], [2], [1], [0]))
    finish(graph, y, corner)
    sizes = [kernel_bytes(graph, e.kernel, float) for e in graph.kernels()]
    assert sorted(sizes) == [4.0 * (12 + 12), 4.0 * (24 + 6 + 24)]
    assert np.isfinite(moved(graph))

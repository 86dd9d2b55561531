"""Polyhedral fusion: what it fuses and what not, feedback, and random chains interpreted and compiled."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import dace
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from daceopt import optimized_module, recipes
from daceopt.cost.limits import Limits
from daceopt.ir.graph.graph import Graph
from daceopt.ir.kernel.kernel import Kernel
from daceopt.ir.nodes.library import Pool
from daceopt.ir.polyhedral import polyhedral
from daceopt.ir.scalar import scalar
from daceopt.passes.transform import Transformation
from daceopt.transformations.local.map_fusion import MapFusion
from daceopt.transformations.partition.polyhedral_fusion import PolyhedralFusion
from tests.ir.listings import bias_and_pool
from tests.numerics import assert_within_rounding
from tests.transformations.lowered import apply, assert_same, compiled, finish, kernels, misses, start, values
from tests.transformations.stencil_chains import SHAPES, chain

ANY = PolyhedralFusion(gain=1e9)  # whatever is legal, fast or not


def relu_pool(
    shape: tuple[int, ...] = (2, 64, 56, 56), kernel: int = 3, pad: int = 1, last: bool = True, where: bool = False
) -> Graph:
    """A bias, a relu and a max pool; ``last``: channels last in memory; ``where``: and the places of the maxima."""
    n, c, h, w = shape
    graph, b, (x, bias) = start((n, h, w, c) if last else shape, (c, 1, 1))
    x = b.transpose(x, (0, 3, 1, 2)) if last else x
    strides = (c * h * w, 1, w * c, c) if last else None
    y = graph.add_array("y", shape, dace.float32, strides)
    b.elementwise(lambda u, v: scalar.maximum(u + v, 0), x, bias, out=y)
    small = [(e + 2 * pad - kernel) // 2 + 1 for e in (h, w)]
    strides = (c * small[0] * small[1], 1, small[1] * c, c) if last else None
    out = graph.add_array("out", (n, c, *small), dace.float32, strides)
    writes = {"Y": out} | ({"Workspace": graph.add_array("w", (n, c, *small), dace.uint8, strides)} if where else {})
    b.library(Pool, {"X": y}, writes, kernel=[kernel] * 2, strides=[2, 2], pads=[pad] * 4)
    return finish(graph, *writes.values())


# ---------------------------------------------------------------- what it fuses


@pytest.mark.parametrize(("kernel", "pad"), [(2, 0), (3, 1)])
def test_pools_read_what_their_tile_computes(kernel: int, pad: int) -> None:
    graph = relu_pool((2, 64, 64, 64), kernel, pad)
    outcome = PolyhedralFusion().run(graph)
    assert outcome.sites == ["k + k"]
    ((found,), entries) = kernels(graph), graph.kernels()
    assert len(entries) == 1 and len(found.stages) == 2
    ((_, shape),) = found.locals.values()
    assert shape[-1] == 64  # channels lie side by side in the tile, too


def test_what_gains_nothing_is_left() -> None:
    """Along rows each place of a window would ask whether it is one of the image."""
    graph = relu_pool((2, 8, 56, 56), last=False, where=True)
    assert "of the time of both" in misses(PolyhedralFusion().run(graph))


def test_element_wise_kernels_are_for_map_fusion() -> None:
    graph, b, (x,) = start((4096, 64))
    finish(graph, b.elementwise(lambda v: v * 2, b.elementwise(lambda v: v + 1, x)))
    assert misses(ANY.run(graph)) == ""


def test_what_is_read_elsewhere_is_still_written() -> None:
    graph, b, (x,) = start((32, 40))
    y = b.elementwise(lambda v: v + 1, x)
    finish(
        graph, y, b.elementwise(lambda u, v: u - v, b.slice(y, [1], [32], [1], [0]), b.slice(y, [0], [31], [1], [0]))
    )
    assert len(apply(ANY, graph).sites) == 1


def test_a_cycle_is_refused() -> None:
    """What lies between would have to run both before and after."""
    graph, b, (x, w) = start((8, 8), (8, 8))
    y = b.elementwise(lambda v: v + 1, x)
    z = b.matmul(y, w)
    finish(graph, b.elementwise(lambda u, v: u - v, b.slice(y, [1], [8], [1], [0]), b.slice(z, [0], [7], [1], [0])))
    assert "what lies between would have to run both before and after" in misses(ANY.run(graph))


def test_chains_become_one_kernel() -> None:
    graph = chain((64, 80), [(1, 0, 0), (1, 1, 0), (1, 0, 0)])
    assert len(apply(ANY, graph).sites) == 1
    (kernel,) = kernels(graph)
    assert len(kernel.stages) == 3


def test_the_tile_is_an_option() -> None:
    graph = relu_pool((2, 4, 32, 32))
    apply(replace(ANY, tile=4), graph)
    (kernel,) = kernels(graph)
    ((_, shape),) = kernel.locals.values()
    assert shape == (9, 9, 4)
    assert str(PolyhedralFusion(tile=4, max_operations=5)) == "polyhedral-fusion{max_operations=5, tile=4}"
    assert Transformation.parse("polyhedral-fusion{tile=4}") == PolyhedralFusion(tile=4)


def test_tiles_follow_the_machine() -> None:
    """A cache of a quarter holds smaller tiles."""
    from daceopt.cost.limits import assume

    def local(limits: Limits) -> int:
        graph = relu_pool((2, 64, 64, 64))
        with assume(limits):
            assert ANY.run(graph).sites
        (kernel,) = kernels(graph)
        return sum(int(np.prod(shape)) * dtype.bytes for dtype, shape in kernel.locals.values())

    small = local(Limits(2, 8 << 10, 32 << 10))
    assert small <= 16 << 10 < local(Limits(2, 64 << 10, 2 << 20))


# ---------------------------------------------------------------- feedback


def test_isl_out_of_operations_is_feedback() -> None:
    """The recipe goes on, and the history says why."""
    step = replace(ANY, max_operations=5)
    graph = bias_and_pool(32, 32)
    assert "isl finds no schedule of k within 5 operations" in misses(apply(step, graph))
    assert apply(ANY, graph).sites  # other bounds are another matter


def test_isl_out_of_time_is_feedback() -> None:
    assert "within 0.0 s" in misses(apply(replace(ANY, seconds=0.0), bias_and_pool(32, 32)))


def test_a_schedule_that_the_checks_refuse_is_feedback(monkeypatch: pytest.MonkeyPatch) -> None:
    from daceopt.errors import IllegalSchedule
    from daceopt.transformations.partition import polyhedral_fusion

    def refuse(*_: Any) -> None:
        raise IllegalSchedule("schedule of k: planted")

    monkeypatch.setattr(polyhedral_fusion, "check", refuse)
    assert "planted" in misses(apply(ANY, bias_and_pool(32, 32)))


def test_each_pair_is_scheduled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The work is linear in the number of micro-graphs."""
    counts = []
    original = polyhedral.schedule
    for copies in (2, 8):
        calls: list[Any] = []
        monkeypatch.setattr(polyhedral, "schedule", lambda *a, _c=calls: (_c.append(a), original(*a))[1])
        graph, b, _ = start((4,))
        for _ in range(copies):
            x = graph.add_input("x", (24, 8), dace.float32)
            y = b.elementwise(lambda v: v + 1, x)
            ahead, back = b.slice(y, [1], [24], [1], [0]), b.slice(y, [0], [23], [1], [0])
            finish(graph, b.elementwise(lambda u, v: u - v, ahead, back))
        assert len(ANY.run(graph).sites) == copies
        counts.append(len(calls))
    assert counts == [2, 8]


# ---------------------------------------------------------------- random chains

STEPS = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 11), st.integers(0, 2)), min_size=2, max_size=5)
TILES = st.sampled_from([None, 1, 2, 3])


def fused(shape: Any, steps: Any, last: bool, tile: int | None) -> tuple[Graph, Graph, int]:
    """The chain, and what is left of it."""
    graph = chain(shape, steps, last)
    before = graph.copy()
    apply(MapFusion(), graph)
    return before, graph, len(apply(replace(ANY, tile=tile), graph).sites)


@settings(max_examples=16)
@given(st.sampled_from(SHAPES), STEPS, st.booleans(), TILES)
def test_random_chains_keep_their_values(shape: Any, steps: Any, last: bool, tile: int | None) -> None:
    fused(shape, steps, last, tile)


@pytest.mark.fuzz
@settings(max_examples=1000)
@given(st.sampled_from(SHAPES), STEPS, st.booleans(), TILES)
def test_a_thousand_random_chains(shape: Any, steps: Any, last: bool, tile: int | None) -> None:
    fused(shape, steps, last, tile)


def scheduled(graph: Graph) -> Graph:
    """With the loops of the recipe ``cpu``."""
    steps = [Transformation.parse(s) if isinstance(s, str) else s for s in recipes.get("cpu").steps]
    for step in steps:
        if step.level == "hardware":
            step.run(graph)
    return graph


def _drawn(seed: int) -> tuple[Graph, Graph, int]:
    source = random.Random(seed)
    steps = [(source.randrange(8), source.randrange(12), source.randrange(3)) for _ in range(4)]
    return fused(source.choice(SHAPES), steps, source.random() < 0.5, source.choice([None, 1, 3]))


@pytest.mark.slow
def test_compiled_chains_are_right() -> None:
    """Some that were fused, scheduled, compiled and run against float64."""
    drawn = [found for found in map(_drawn, range(30)) if found[2]][:6]
    assert len(drawn) == 6
    after = [scheduled(graph) for _, graph, _ in drawn]
    for (before, _, _), graph in zip(drawn, after, strict=True):
        assert_same(before, graph)
    for (before, _, _), results in zip(drawn, compiled("polyhedral-chains", after), strict=True):
        for ours, exact, own in zip(results, values(before), values(before, dtype=None), strict=True):
            assert_within_rounding(ours, exact, own)


# ---------------------------------------------------------------- modules


class Stem(nn.Module):
    """A convolution, its activation and a pool, whose result another convolution reads in the same layout."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.next = nn.Conv2d(8, 8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.next(self.pool(torch.relu(self.conv(x))))


@pytest.mark.parametrize("training", [pytest.param(False, marks=pytest.mark.breadth), True])
def test_a_stem_under_numerics(training: bool) -> None:
    """Forward and gradients, and the history says what was fused."""
    model = Stem() if training else Stem().eval()
    recipe = recipes.get("cpu").after("map-fusion", ANY)
    net = optimized_module(model, recipe=recipe, verify="numerics", fallback="raise")
    x = torch.randn(2, 3, 16, 16, requires_grad=training)
    with torch.set_grad_enabled(training):
        y = net(x)
    expected = Stem.forward(model, x)
    torch.testing.assert_close(y, expected)
    step = next(h for h in net.daceopt.history if h["name"].startswith("polyhedral-fusion"))
    assert step["sites"] == ["relu + maxpool"]
    if training:
        (ours,) = torch.autograd.grad(y.square().sum(), x)
        (theirs,) = torch.autograd.grad(expected.square().sum(), x)
        torch.testing.assert_close(ours, theirs)


def test_the_recipe_goes_on_after_feedback() -> None:
    recipe = recipes.get("cpu").after("map-fusion", replace(ANY, max_operations=1))
    net = optimized_module(Stem().eval(), recipe=recipe, fallback="raise")
    with torch.no_grad():
        x = torch.randn(1, 3, 8, 8)
        torch.testing.assert_close(net(x), Stem.forward(net, x))
    step = next(h for h in net.daceopt.history if h["name"].startswith("polyhedral-fusion"))
    assert step["sites"] == [] and "within 1 operations" in step["near_misses"][0]


def test_kernel_fields() -> None:
    """What is emitted is an ordinary kernel: shared loops, a local, statements in turn."""
    graph = relu_pool((2, 8, 16, 16))
    apply(ANY, graph)
    (kernel,) = kernels(graph)
    assert isinstance(kernel, Kernel) and kernel.outer and not kernel.is_tiled

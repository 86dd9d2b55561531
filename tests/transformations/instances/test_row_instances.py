"""Rows of images at a time compute what whole images do, whatever their halos are; what is not understood stays."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

from daceopt import optimized_module
from daceopt.ir.graph.graph import Graph
from daceopt.passes.recipe import recipes
from daceopt.passes.transform import Outcome
from daceopt.transformations.instances import _row_regions
from tests.numerics import assert_within_rounding
from tests.transformations.instances.graphs_of import assert_same, values
from tests.transformations.instances.networks import Network
from tests.transformations.instances.random_networks import RandomNetwork
from transformations.instances.row_instances import RowInstances

CACHE = 1 << 14


@pytest.fixture(autouse=True)
def _small_images_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls cost nothing, so that images of a few rows are worth instances."""
    monkeypatch.setattr(_row_regions, "_CALL", 0)


def _images_last(graph: Graph) -> Graph:
    """Channels innermost in memory, as the layouts of the recipe have them."""
    for name in graph.arrays():
        shape = graph.shape(name)
        if len(shape) == 4 and name not in graph.inputs and not graph.is_view(name) and not graph.is_part(name):
            _, channels, height, width = map(int, shape)
            graph.set_strides(name, (channels * height * width, 1, channels * width, channels))
    return graph


def _run(graph: Graph, cache: int = CACHE) -> Outcome:
    expected = values(graph)
    outcome = RowInstances(cache=cache).run(graph)
    graph.validate()
    assert_same(graph, expected)
    return outcome


@pytest.mark.parametrize("height", [64, 61, 37])
@pytest.mark.parametrize("stride", [1, 2])
def test_a_chain_of_windows(height: int, stride: int) -> None:
    net = Network(1, 3, height, 64)
    x = net.relu(net.conv(net.x, 4, 3))
    x = net.conv(net.conv(x, 4, 1), 4, 5, stride)
    graph = _images_last(net.done(net.pool(net.relu(x), 3, 2)))
    assert "in" in _run(graph).sites[0]


def test_what_lies_between_two_instances_is_computed_twice_and_nothing_more() -> None:
    net = Network(1, 4, 64, 64)
    graph = _images_last(net.done(net.conv(net.conv(net.x, 4, 3), 4, 3)))
    (site,) = _run(graph, 50_000).sites
    count = int(site.split(" in ")[1].split()[0])
    rows = [int(graph.shape(n)[2]) for node in graph.nodes() for n in graph.outputs_of(node) if n is not None]
    assert sum(rows) == 64 + 64 + 2 * (count - 1)
    assert [rows[k] for k in (0, -2)] == [64 // count + 1] * 2 and set(rows[2:-2:2]) == {64 // count + 2}
    order = [int(graph.shape(n)[2]) for node in graph.nodes() for n in graph.outputs_of(node) if n is not None]
    assert order[1::2] == [64 // count] * count  # one instance after the other


def test_residuals_of_different_halos() -> None:
    net = Network(1, 4, 64, 64)
    x = net.relu(net.conv(net.x, 4, 3))
    y = net.conv(net.relu(net.conv(x, 4, 3, group=4)), 4, 1)
    z = net.add_relu(y, x)
    graph = _images_last(net.done(net.conv(net.add_relu(z, x), 4, 3)))
    assert _run(graph).sites


@pytest.mark.parametrize(("batch", "layout", "reason"), [(2, True, "not outermost"), (1, False, "not outermost")])
def test_rows_that_are_not_in_one_place_are_refused(batch: int, layout: bool, reason: str) -> None:
    net = Network(batch, 4, 64, 16)
    graph = net.done(net.conv(net.conv(net.x, 4, 3), 4, 3))
    outcome = _run(_images_last(graph) if layout else graph)
    assert not outcome.sites and all(reason in miss for miss in outcome.near_misses)


def test_what_fits_is_left_as_it_is() -> None:
    net = Network(1, 4, 8, 8)
    graph = _images_last(net.done(net.conv(net.x, 64, 1)))
    assert not _run(graph, 1 << 20).sites


class RandomImages(RandomNetwork):
    """Of one image that is high enough for instances."""

    def __init__(self, seed: int):
        self.rng = np.random.default_rng(seed)
        Network.__init__(self, 1, self._one_of(2, 4), int(self.rng.integers(17, 42)), 8)
        self.pool_of = [self.x]


def test_random_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_row_regions, "_OPERATIONS", 1e9)  # what is computed again costs nothing
    monkeypatch.setattr(_row_regions, "_NEAR", 1e9)
    regions = sum(
        bool(_run(_images_last(RandomImages(seed).build(9)), 1 << (9 + seed % 5)).sites) for seed in range(40)
    )
    assert regions > 20


# ---------------------------------------------------------------- modules


class Windows(nn.Module):
    """Strides, pads, dilation, groups, residuals, concatenation, resizing, and a result inside."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 7, 2, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        self.wide = nn.Conv2d(16, 16, 3, padding=2, dilation=2, groups=4)
        self.plain = nn.Conv2d(16, 16, 3, padding="same", padding_mode="reflect")
        self.last = nn.Sequential(nn.Conv2d(32, 8, 3), nn.AvgPool2d(2), nn.SiLU(), nn.Conv2d(8, 4, (5, 1)))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.stem(x)
        y = torch.relu(self.wide(x)) + x
        y = torch.cat([self.plain(y), x], 1)
        y = nn.functional.interpolate(y, scale_factor=2)
        return self.last(y), y.mean((2, 3))


RECIPE = recipes.get("graphturbo").with_options("row-instances", cache=1 << 16)


@pytest.mark.parametrize(("batch", "height", "width"), [(1, 128, 64), (1, 117, 64), (3, 90, 50)])
def test_modules_beside_float64(batch: int, height: int, width: int) -> None:
    torch.manual_seed(0)
    plain = Windows().eval()
    module = optimized_module(copy.deepcopy(plain), recipe=RECIPE, fallback="raise")
    x = torch.randn(batch, 3, height, width)
    with torch.no_grad():
        for ours, wanted in zip(module(x), plain.double()(x.double()), strict=True):
            assert_within_rounding(ours, wanted, ulps=256)
    (step,) = [h for h in module.daceopt.history if h["name"].startswith("row-instances")]
    assert bool(step["sites"]) is (batch == 1)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_element_types(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 4, 3, 2)).eval().to(dtype)
    module = optimized_module(copy.deepcopy(plain), recipe=RECIPE, fallback="raise")
    x = torch.randn(1, 3, 97, 64).to(dtype)
    with torch.no_grad():
        wanted = plain.double()(x.double())
        bound = {torch.float64: 1e-13, torch.bfloat16: 2e-2}[dtype] * float(wanted.abs().max())
        np.testing.assert_allclose(module(x).double().numpy(), wanted.numpy(), rtol=0, atol=bound)


def test_sizes_that_are_open_stay_whole() -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()
    plain = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 3)).eval()
    module = optimized_module(copy.deepcopy(plain), recipe=RECIPE, fallback="raise")
    with torch.no_grad():
        for height in (40, 33, 64):
            x = torch.randn(1, 3, height, 32)
            torch._dynamo.mark_dynamic(x, 2)
            torch.testing.assert_close(module(x), plain(x))


def test_nan_is_seen_in_each_instance() -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 8, 1), nn.ReLU(), nn.Conv2d(8, 2, 3)).eval()
    module = optimized_module(copy.deepcopy(plain), recipe=RECIPE, fallback="raise")
    images = torch.randn(1, 3, 64, 32)
    with torch.no_grad():
        for row, value in ((0, 0.0), (30, torch.nan), (63, -torch.inf), (17, 3e38), (0, 0.0)):
            x = images.clone()
            x[0, :, row, 2] = value
            assert torch.equal(module(x).isnan(), plain(x).isnan())
            largest = float(plain(x).nan_to_num(0, 0, 0).abs().max())
            torch.testing.assert_close(module(x), plain(x), rtol=0, atol=1e-5 * largest, equal_nan=True)

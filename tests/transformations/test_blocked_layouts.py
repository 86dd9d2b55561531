"""Images in blocks of channels by ``layout-search``: chosen where the times of convolutions say so, and only there."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from daceopt import optimized_module, recipes
from daceopt.ir.graph.graph import Graph
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.nodes.library import Convolution, Pool
from daceopt.ir.text.render import render
from daceopt.libs.convolution_times import Times
from daceopt.transformations.layout import _layout_costs
from daceopt.transformations.layout.layout_search import LayoutSearch
from tests.numerics import assert_within_rounding
from tests.transformations.lowered import F, apply, finish, size_symbol, start

LAST = (800, 1, 160, 32)
Assume = Callable[[Times | None], None]


@pytest.fixture
def assume(monkeypatch: pytest.MonkeyPatch) -> Assume:
    """Let all convolutions take such times."""
    return lambda times: monkeypatch.setattr(_layout_costs, "times", lambda *_: times)


BLOCKED, FIRST, ALL_LAST = Times(3e-3, 2e-3, 1e-3), Times(1e-3, 2e-3, 2e-3), Times(3e-3, 1e-3, 0.995e-3)  # seconds


def convolution(b: Builder, x: str, channels: int, size: int = 1, group: int = 1) -> str:
    n, c, *spatial = b.graph.shape(x)
    w = b.graph.add_input("w", (channels, c // group, size, size), F)
    y = b.graph.add_array("y", (n, channels, *spatial), F)
    b.library(Convolution, {"X": x, "W": w}, {"Y": y}, pads=[size // 2] * 4, group=group)
    return y


def separable(batch: Any = 2) -> Graph:
    graph, b, (x,) = start((batch, 8, 5, 5))
    y = b.elementwise(lambda v: v * 2, convolution(b, x, 32))
    return finish(graph, convolution(b, convolution(b, y, 32, 3, 32), 8))


def shapes(graph: Graph) -> list[tuple[Any, ...]]:
    return [graph.shape(n) for node in graph.nodes() for n in graph.outputs_of(node) if n is not None]


def test_before_and_after(assume: Assume) -> None:
    assume(BLOCKED)
    graph = separable()
    outcome = apply(LayoutSearch(), graph)
    assert outcome.sites == ["3 images in blocks of channels"]
    assert shapes(graph) == [*[(2, 2, 5, 5, 16)] * 3, (2, 8, 5, 5)]
    assert [n.layout for n in graph.nodes() if isinstance(n, Convolution)] == ["blocked"] * 3
    assert apply(LayoutSearch(), graph).sites == []


@pytest.mark.parametrize(("times", "layout"), [(BLOCKED, "blocked"), (FIRST, "first"), (ALL_LAST, "last")])
def test_a_convolution_alone(assume: Assume, times: Times, layout: str) -> None:
    """Nothing may stand in another layout; what it works in is known."""
    graph, b, (x,) = start((2, 32, 5, 5))
    finish(graph, convolution(b, x, 32, 3))
    assume(times)
    before = shapes(graph)
    apply(LayoutSearch(), graph)
    (node,) = (n for n in graph.nodes() if isinstance(n, Convolution))
    assert shapes(graph) == before and node.layout == layout


@pytest.mark.parametrize("times", [None, ALL_LAST])
def test_where_blocks_do_not_win_images_stand_as_without(assume: Assume, times: Times | None) -> None:
    """Convolutions work in the layout of these, where it is known that they are as fast there."""
    with_, without = separable(), separable()
    assume(BLOCKED)
    apply(LayoutSearch(blocked=False), without)
    assume(times)
    apply(LayoutSearch(), with_)
    assert render(with_).replace('layout="last", ', "") == render(without)
    assert with_.strides(with_.outputs_of(with_.nodes()[0])[0]) == LAST
    convolutions = [n for n in with_.nodes() if isinstance(n, Convolution)]
    assert {n.layout for n in convolutions} == {"last" if times else ""}


def test_small_and_open_sizes_are_not_measured() -> None:
    """Nor are blocks chosen for them."""
    for batch in (2, size_symbol()):
        with_, without = separable(batch), separable(batch)
        apply(LayoutSearch(), with_)
        apply(LayoutSearch(blocked=False), without)
        assert render(with_) == render(without)


def test_single_pixels_in_rows(assume: Assume) -> None:
    """Convolutions choose among the layouts that there have been, too."""
    assume(FIRST)
    graph = separable()
    apply(LayoutSearch(), graph)
    assert shapes(graph) == [(2, 32, 5, 5)] * 3 + [(2, 8, 5, 5)]
    assert all(graph.strides(graph.outputs_of(node)[0])[-1] == 1 for node in graph.nodes())
    assert [n.layout for n in graph.nodes() if isinstance(n, Convolution)] == ["first"] * 3


def test_few_channels_and_outputs_stay(assume: Assume) -> None:
    assume(BLOCKED)
    graph, b, (x,) = start((2, 32, 5, 5))
    narrow = convolution(b, x, 24)
    wide = convolution(b, narrow, 32)
    apply(LayoutSearch(), finish(graph, convolution(b, wide, 32, 3), wide))
    assert shapes(graph) == [(2, 24, 5, 5), (2, 32, 5, 5), (2, 32, 5, 5)]


def test_a_pool_costs_a_copy(assume: Assume) -> None:
    """Where convolutions win more than that, the pool reads a copy."""
    graph, b, (x,) = start((2, 32, 6, 6))
    y = convolution(b, x, 32)
    z = convolution(b, y, 32, 3, 32)
    p = graph.add_array("p", (2, 32, 3, 3), F)
    b.library(Pool, {"X": y}, {"Y": p}, kind="max", kernel=[2, 2], strides=[2, 2], pads=[0] * 4, dilations=[1, 1])
    finish(graph, convolution(b, z, 8), p)
    assume(BLOCKED)
    apply(LayoutSearch(), graph)
    assert [k.label for k in graph.kernels()] == ["out_of_blocks"]
    assert graph.shape(graph.reads(next(n for n in graph.nodes() if isinstance(n, Pool)))["X"]) == (2, 32, 6, 6)


class _Inverted(nn.Module):
    """A block of MobileNetV2 on a narrow and on a wide image, a pool, a concatenation, and a view."""

    def __init__(self) -> None:
        super().__init__()
        self.expand, self.narrow = nn.Conv2d(24, 48, 1, bias=False), nn.BatchNorm2d(48)
        self.deep, self.project = nn.Conv2d(48, 48, 3, padding=1, groups=48, bias=False), nn.Conv2d(48, 32, 1)
        self.same, self.pool = nn.Conv2d(32, 32, 3, padding=1), nn.MaxPool2d(2)
        self.joined, self.rows = nn.Conv2d(64, 16, 3, stride=2), nn.Linear(6, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.project(torch.tanh(self.deep(torch.tanh(self.narrow(self.expand(x))))))
        z = torch.sigmoid(y + self.same(y))
        joined = self.joined(torch.cat([self.pool(z), self.pool(y)], 1))
        return joined.mean((2, 3)).sum(1) + self.rows(z).square().mean((1, 2, 3))


@pytest.mark.slow
@pytest.mark.breadth
def test_verified_by_numbers(assume: Assume) -> None:
    """Each step of both directions, though what is saved has another shape from then on."""
    assume(BLOCKED)
    model = optimized_module(_Inverted(), recipe=recipes.get("cpu"), verify="numerics", fallback="raise")
    model(torch.randn(2, 24, 6, 6)).sum().backward()
    assert sum("in blocks" in site for s in model.daceopt.history for site in s["sites"]) == 2


@pytest.mark.parametrize("training", [False, True])
def test_both_directions(assume: Assume, training: bool) -> None:
    """Beside float64, compiled: what is saved stands in blocks for both."""
    assume(BLOCKED)
    torch.manual_seed(0)
    module, x = _Inverted().train(training), torch.randn(3, 24, 6, 6)
    ours = optimized_module(copy.deepcopy(module), recipe=recipes.get("cpu"), fallback="raise")
    runs = []
    for model, dtype in ((ours, torch.float32), (copy.deepcopy(module).double(), torch.float64), (module, x.dtype)):
        image = x.to(dtype).requires_grad_()
        result = model(image)
        runs.append([result.detach(), *torch.autograd.grad(result.sum(), [image, *model.parameters()])])
    chosen = [s["sites"] for s in ours.daceopt.history if s["name"] == "layout-search"]
    assert len(chosen) == 2 and all(any("in blocks" in site for site in sites) for sites in chosen)
    for found, exact, peer in zip(*runs, strict=True):
        one = torch.ones(1, dtype=found.dtype)
        assert_within_rounding(*(torch.cat([t.flatten(), one.to(t.dtype)]) for t in (found, exact, peer)))

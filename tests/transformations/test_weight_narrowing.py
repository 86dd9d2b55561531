"""Weights that autocast converts are kept in their narrow type: which ones, and what becomes of changed ones."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor

import dace
import ml_dtypes
import numpy as np
import pytest
import torch
from torch import nn

import daceopt
from daceopt import libs
from daceopt.ir.graph.graph import Graph
from daceopt.ir.interpreter.interpret import interpret
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.nodes.library import Contraction, Convolution, ConvolutionBackwardData, narrow_type
from daceopt.ir.scalar import types
from daceopt.transformations.local import weight_narrowing
from daceopt.transformations.local.weight_narrowing import WeightNarrowing
from tests.numerics import assert_within_rounding

F, B = dace.float32, types.BFLOAT16
pytestmark = pytest.mark.skipif("onednn" not in libs.names(), reason="oneDNN's wheels are not installed")


@pytest.fixture(autouse=True)
def units(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever this machine has: without units the library has other ways to the same numbers."""
    monkeypatch.setattr(weight_narrowing, "cpu_features", lambda: {"avx512_bf16"})


def product(weights: str = "rounded", **attributes: object) -> Graph:
    """A layer under autocast: its weights, of float32, are rounded and multiplied as they stand, transposed."""
    graph = Graph("linear")
    x, w = graph.add_input("x", (5, 24), B), graph.add_input("w", (16, 24), F)
    b = Builder(graph, "k")
    if weights == "scaled":
        w = b.elementwise(lambda v: 2 * v, w)
    narrow = b.elementwise(lambda v: 2 * v, w, dtype=B) if weights == "changed" else b.cast(w, B)
    y = graph.add_array("y", (5, 16), B)
    turned = graph.add_view(narrow, "turned", (24, 16), (1, 24))
    b.library(Contraction, {"A": x, "B": turned}, {"Y": y}, **attributes)
    graph.add_output(y)
    if weights == "read again":
        graph.add_output(b.cast(narrow, F))
    return graph


def convolutions() -> Graph:
    graph = Graph("images")
    x, w = graph.add_input("x", (2, 8, 9, 9), B), graph.add_input("w", (16, 8, 3, 3), F)
    b = Builder(graph, "k")
    narrow, y, z = b.cast(w, B), graph.add_array("y", (2, 16, 7, 7), B), graph.add_array("z", (2, 8, 9, 9), B)
    b.library(Convolution, {"X": x, "W": narrow}, {"Y": y})
    b.library(ConvolutionBackwardData, {"dY": y, "W": narrow}, {"dX": z})
    graph.add_output(z)
    return graph


def results(graph: Graph) -> list[np.ndarray]:
    rng, given = np.random.default_rng(2), {}
    for name in graph.inputs:
        dtype = ml_dtypes.bfloat16 if graph.dtype(name) == B else np.float32
        given[name] = rng.standard_normal(graph.shape(name)).astype(dtype)
    return [np.asarray(x, np.float64) for x in interpret(graph, given).values()]


@pytest.mark.parametrize(("make", "calls"), [(product, 1), (convolutions, 2)])
def test_calls_read_what_was_rounded(make: object, calls: int) -> None:
    graph = make()
    before = results(graph)
    assert len(WeightNarrowing().run(graph).sites) == calls
    graph.validate()
    nodes = [n for n in graph.nodes() if isinstance(n, (Contraction, Convolution, ConvolutionBackwardData))]
    assert len(nodes) == calls and not graph.kernels()
    for node in nodes:
        assert node.packed and narrow_type(node, graph) == B
        assert graph.root(graph.reads(node)[node.weights])[0] == graph.inputs[1]
    assert all(np.array_equal(a, b) for a, b in zip(before, results(graph), strict=True))
    assert not WeightNarrowing().run(graph).sites


def test_what_else_is_read_stays_rounded() -> None:
    graph = product("read again")
    before = results(graph)
    assert len(WeightNarrowing().run(graph).sites) == 1
    assert len(graph.kernels()) == 2
    assert all(np.array_equal(a, b) for a, b in zip(before, results(graph), strict=True))


@pytest.mark.parametrize("why", ["scaled", "changed", "training", "another library", "activation"])
def test_what_is_left_alone(why: str) -> None:
    graph = product(why, activation="relu" if why == "activation" else None)
    if why == "training":
        graph.saved.append(graph.outputs[0])
    with libs.prefer(**({"Contraction": "mkl"} if why == "another library" else {})):
        assert not WeightNarrowing().run(graph).sites


def test_machines_without_units_leave_weights_to_their_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_narrowing, "cpu_features", set)
    outcome = WeightNarrowing().run(product())
    assert not outcome.sites and "no units" in outcome.near_misses[0]


class Net(nn.Module):
    """A convolution, and a layer that is applied twice."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.line = nn.Conv2d(3, 16, 5, padding=2), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.line(self.line(self.conv(x).mean((2, 3))))


def called(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
        return module(x)


def assert_as_good_as_eager(ours: nn.Module, model: nn.Module, x: torch.Tensor) -> None:
    with torch.no_grad():
        exact = copy.deepcopy(model).double()(x.double())
    assert_within_rounding(called(ours, x), exact, called(model, x), factor=2, ulps=2)


def test_weights_that_change_are_rounded_again() -> None:
    torch.manual_seed(0)
    model = Net().eval()
    ours = daceopt.optimized_module(copy.deepcopy(model), fallback="raise")
    x = torch.randn(4, 3, 12, 12)
    assert_as_good_as_eager(ours, model, x)
    for change in (lambda p: p.mul_(-1), lambda p: p.add_(0.01), lambda p: p.zero_()):
        for net in (model, ours):
            with torch.no_grad():
                for p in net.parameters():
                    change(p)
        assert_as_good_as_eager(ours, model, x)
        for net in (model, ours):  # behind autograd's back
            net.get_parameter("conv.weight").data.view(-1)[7] = 3.0
        assert_as_good_as_eager(ours, model, x)


def test_threads_share_what_is_kept() -> None:
    torch.manual_seed(1)
    model = Net().eval()
    ours = daceopt.optimized_module(copy.deepcopy(model), fallback="raise")
    images = [torch.randn(n, 3, 12, 12) for n in (1, 2, 5, 1, 3, 2, 5, 1)]
    called(ours, images[0])
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda x: called(ours, x), images))
    for x, y in zip(images, found, strict=True):
        with torch.no_grad():
            exact = copy.deepcopy(model).double()(x.double())
        assert_within_rounding(y, exact, called(model, x), factor=2, ulps=2)

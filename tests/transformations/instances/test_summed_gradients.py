"""Gradients of weights in instances: each adds the sum over its part of the batch, in order, to what is carried."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional

from daceopt import optimized_module, recipes
from daceopt.ir.control.region import Repeat, everything, regions
from daceopt.ir.graph.graph import Graph
from tests.capture.torch.checking import make_backend
from tests.capture.torch.interpreted import compile_interpreted
from tests.numerics import assert_within_rounding

RECIPE = recipes.get("graphturbo").with_options("instance-loops", items=2)


class Images(nn.Module):
    """Convolutions without anything that needs the whole batch, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.norm, self.last = nn.GroupNorm(2, 8), nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = functional.silu(self.norm(self.first(x)))
        return self.last(functional.relu(self.second(y) + y).mean((2, 3)))


class Normalized(nn.Module):
    """Batch normalization, whose statistics need all items: a barrier between instances."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(functional.relu(self.norm(self.first(x))))


class Sequences(nn.Module):
    """A table, attention, layer normalization: rows of all sequences of the batch are summed."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.layer = nn.Embedding(11, 16), nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(self.table(x))


def _inputs(kind: type[nn.Module], batch: int) -> torch.Tensor:
    return torch.randint(0, 11, (batch, 6)) if kind is Sequences else torch.randn(batch, 3, 6, 6)


def _gradients(module: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    module.zero_grad()
    module(x).sin().sum().backward()
    return [p.grad for p in module.parameters() if p.grad is not None]


def _backward(module: nn.Module, x: torch.Tensor) -> Graph:
    """The graph of the backward pass, after the recipe; interpreted gradients are those of eager float64."""
    torch._dynamo.reset()
    backend = make_backend(partial(compile_interpreted, through=RECIPE))
    exact = copy.deepcopy(module).double()
    theirs = _gradients(copy.deepcopy(module), x)
    found = _gradients(torch._dynamo.optimize(backend, nopython=True, dynamic=None)(module), x)
    wanted = _gradients(exact, x.double() if x.is_floating_point() else x)
    for one, other, eager in zip(found, wanted, theirs, strict=True):
        assert_within_rounding(one, other, eager)
    (piece,) = backend.graphs
    _, (graph, _) = piece.pair.source.graphs.directions()
    return graph


def _carried(graph: Graph) -> list[Repeat]:
    return [n for g in everything(graph) for n in regions(g) if isinstance(n, Repeat) and n.carried]


@pytest.mark.parametrize("batch", [6, 7])
def test_all_gradients_of_weights_are_carried(batch: int) -> None:
    torch.manual_seed(0)
    module = Images()
    loops = _carried(_backward(module, _inputs(Images, batch)))
    assert len(loops) == 1 + batch % 2
    # but for the last bias, whose gradient is the sum of what the backward pass is given
    assert all(len(loop.carried) == len(list(module.parameters())) - 1 for loop in loops)


def test_statistics_of_the_batch_end_an_instance() -> None:
    torch.manual_seed(0)
    graph = _backward(Normalized(), _inputs(Normalized, 6))
    assert len(_carried(graph)) > 1  # before the gradient through the statistics, and behind it


def test_sequences() -> None:
    torch.manual_seed(0)
    assert _carried(_backward(Sequences(), _inputs(Sequences, 5)))


@pytest.mark.share(3)
@pytest.mark.parametrize("kind", [Sequences, Images, Normalized])
def test_built(kind: type[nn.Module]) -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()
    plain = kind()
    exact = copy.deepcopy(plain).double()
    module = optimized_module(copy.deepcopy(plain), recipe=RECIPE, fallback="raise", verify="numerics")
    x = _inputs(kind, 7)
    theirs, wanted = _gradients(plain, x), _gradients(exact, x.double() if x.is_floating_point() else x)
    found = [g.clone() for g in _gradients(module, x)]
    again = _gradients(module, x)
    for one, other, eager, repeated in zip(found, wanted, theirs, again, strict=True):
        assert_within_rounding(one, other, eager)
        assert torch.equal(one, repeated)
    assert any(step["sites"] for step in module.daceopt.history if step["name"].startswith("instance-loops"))


def test_a_batch_of_open_size() -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()
    plain = Images()
    module = optimized_module(copy.deepcopy(plain), recipe=RECIPE, fallback="raise")
    for batch in (5, 4, 9, 2):
        x = _inputs(Images, batch)
        torch._dynamo.mark_dynamic(x, 0)
        exact = _gradients(copy.deepcopy(plain).double(), x.double())
        for one, other, eager in zip(_gradients(module, x), exact, _gradients(plain, x), strict=True):
            assert_within_rounding(one, other, eager)

"""Relus in convolutions: where, what is looked at for NaN, and the numbers of PyTorch, whatever stands in images."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import dace
import pytest
import sympy
import torch
from torch import nn

from daceopt import optimized_module
from daceopt.ir.graph.graph import Graph
from daceopt.ir.nodes.library import Contraction, Convolution, NanWatch
from daceopt.ir.scalar import scalar
from daceopt.transformations.local._nan_flow import keeps_nan, watch_points
from daceopt.transformations.local.relu_absorption import ReluAbsorption
from tests.numerics import assert_within_rounding
from tests.transformations.lowered import F, apply, finish, misses, start

V = scalar.symbol("v", F)


class Residual(nn.Module):
    """Two blocks with normalizations, a sum of two scaled convolutions, and a sum with what a block reads."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(8, 16, 3, padding=1, bias=False), nn.Conv2d(16, 16, 3, padding=1)
        self.beside, self.third = nn.Conv2d(8, 16, 1, bias=False), nn.Conv2d(16, 16, 3, padding=1)
        self.norms = nn.ModuleList(nn.BatchNorm2d(16) for _ in range(4))
        self.head = nn.Linear(16, 5)
        for norm in self.norms:
            nn.init.normal_(norm.running_mean)
            nn.init.uniform_(norm.running_var, 0.5, 2.0)
            nn.init.normal_(norm.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: [N, 8, H, W]; result: [N, 5]."""
        y = torch.relu(self.norms[0](self.first(x)))
        y = torch.relu(self.norms[1](self.second(y)) + self.norms[2](self.beside(x)))
        y = torch.relu(self.norms[3](self.third(y)) + y)
        return self.head(y.amax((2, 3)))


@pytest.fixture(scope="module")
def residual() -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    model = Residual().eval()
    return model, optimized_module(copy.deepcopy(model), fallback="raise", recipe="cpu")


def spoiled(image: torch.Tensor, value: float, where: Any) -> torch.Tensor:
    found = image.clone()
    found[where] = value
    return found


CASES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "plain": lambda x: x,
    "nan": lambda x: spoiled(x, math.nan, (0, 0, 0, 0)),
    "infinite": lambda x: spoiled(x, math.inf, (0, slice(None), 3, 3)),
    "minus infinite": lambda x: spoiled(x, -math.inf, (1, 2, 0, 5)),
    "overflow": lambda x: x * 1e38,
    "empty": lambda x: x[:0],
    "larger": lambda x: torch.cat([x, x + 1]).repeat(1, 1, 2, 2),
}


@pytest.mark.parametrize("name", CASES)
def test_numbers_are_those_of_pytorch(residual: tuple[nn.Module, Any], name: str) -> None:
    model, ours = residual
    x = CASES[name](torch.randn(2, 8, 6, 6, generator=torch.Generator().manual_seed(1)))
    with torch.no_grad():
        found, single, exact = ours(x), model(x), copy.deepcopy(model).double()(x.double())
    assert torch.equal(found.isnan(), single.isnan())
    if name in ("plain", "larger", "empty"):
        assert_within_rounding(found, exact, single)
        assert not found.isnan().any()
    if name == "plain":
        assert "watch_for_nan(" in ours.daceopt.source()


class Falling(nn.Module):
    """Its first convolution gives -inf, which relu makes 0: nothing of it is left."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 21, 1, bias=False), nn.Conv2d(21, 4, 1)
        nn.init.constant_(self.first.weight, -10.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: [N, 3, H, W]; result: [N, 4, H, W]."""
        return self.second(torch.relu(self.first(x)))


def test_minus_infinity_becomes_zero() -> None:
    """Of which the run in registers makes NaN: the program runs again, and after that as before."""
    torch.manual_seed(0)
    model = Falling().eval()
    ours = optimized_module(copy.deepcopy(model), fallback="raise", recipe="cpu")
    huge, small = torch.full((2, 3, 9, 9), 3e38), torch.rand(2, 3, 9, 9) - 0.5
    with torch.no_grad():
        for x in (huge, small, spoiled(small, 3e38, (1, 0, 4, 4)), small):
            assert torch.equal(model(x).isnan(), ours(x).isnan()) and not ours(x).isnan().any()
            torch.testing.assert_close(ours(x), model(x), rtol=1e-5, atol=1e-6)


class Bounded(nn.Module):
    """Mobile blocks: relus up to 6 behind convolutions of all sorts, after normalizations or not."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.widen = nn.Conv2d(3, 32, 3, 2, 1), nn.Conv2d(32, 96, 1, bias=False)
        self.deep, self.narrow = nn.Conv2d(96, 96, 3, 1, 1, groups=96, bias=False), nn.Conv2d(96, 21, 1)
        self.norms = nn.ModuleList(nn.BatchNorm2d(96) for _ in range(2))
        self.last = nn.Conv2d(21, 24, 1)
        for norm in self.norms:
            nn.init.normal_(norm.running_mean)
            nn.init.uniform_(norm.running_var, 0.5, 2.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: [N, 3, H, W]; result: [N, 24]."""
        y = nn.functional.relu6(self.norms[0](self.widen(nn.functional.hardtanh(self.stem(x), 0.0, 2.5))))
        y = self.narrow(nn.functional.relu6(self.norms[1](self.deep(y))))
        return self.last(y).mean((2, 3))


@pytest.fixture(scope="module")
def bounded() -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    model = Bounded().eval()
    return model, optimized_module(copy.deepcopy(model), fallback="raise", recipe="cpu")


@pytest.mark.parametrize("name", CASES)
def test_relus_with_a_ceiling_give_the_numbers_of_pytorch(bounded: tuple[nn.Module, Any], name: str) -> None:
    """Which a clip alone would not: it makes a number of NaN."""
    model, ours = bounded
    x = CASES[name](torch.randn(2, 8, 24, 24, generator=torch.Generator().manual_seed(1)))[:, :3]
    with torch.no_grad():
        found, single, exact = ours(x), model(x), copy.deepcopy(model).double()(x.double())
    assert torch.equal(found.isnan(), single.isnan())
    if name in ("plain", "larger", "empty"):
        assert_within_rounding(found, exact, single)
    if name == "plain":
        source = ours.daceopt.source()
        assert "float(2.5)}" in source and source.count("float(6.0)}") == 2 * source.count("float(2.5)}")
    assert name != "nan" or found.isnan().any()


def network(copies: int = 0) -> tuple[Graph, str]:
    """A convolution, its relu, of which there may be copies as results, and the product of its sums with weights."""
    graph, b, (x, w, v) = start((2, 16, 12, 12), (16, 16, 3, 3), (16, 3))
    y = graph.add_array("y", (2, 16, 12, 12), F)
    b.library(Convolution, {"X": x, "W": w}, {"Y": y}, pads=[1, 1, 1, 1])
    z = b.elementwise(lambda p: scalar.select(scalar.le(p, 0), 0, p), y)
    for _ in range(copies):
        finish(graph, b.copy(z))
    finish(graph, b.matmul(b.reduce("sum", None, z, axes=(2, 3)), v))
    return graph, z


def test_a_relu_goes_into_its_convolution() -> None:
    graph, z = network()
    outcome = apply(ReluAbsorption(), graph, special=True)
    convolution = next(n for n in graph.nodes() if isinstance(n, Convolution))
    watch = next(n for n in graph.nodes() if isinstance(n, NanWatch))
    assert len(outcome.sites) == 1 and (convolution.activation, convolution.doubtful) == ("relu", True)
    assert graph.writes(convolution)["Y"] == z and graph.reads(watch)["X"] == graph.outputs[0]
    graph.prune()
    assert watch in graph.nodes()


def test_what_has_to_be_watched_must_be_small() -> None:
    """Each copy is as much to read as half of what is saved."""
    graph, _ = network(copies=1)
    assert len(apply(ReluAbsorption(), graph, special=True).sites) == 1
    graph, _ = network(copies=2)
    assert "costs more" in misses(apply(ReluAbsorption(), graph, special=True))


def test_programs_that_write_over_arguments_run_once() -> None:
    graph, _ = network()
    graph.replaced[0] = graph.inputs[2]
    assert "writes over its arguments" in misses(apply(ReluAbsorption(), graph))


@pytest.mark.parametrize(
    ("expr", "keeps"),
    [
        (V + 1, True),
        (sympy.tanh(2 * V) ** 2, True),
        (scalar.maximum(V, 0), True),
        (scalar.select(scalar.le(V, 0), 0, V), True),
        (scalar.select(scalar.gt(V, 0), V, 0), False),
        (scalar.select(scalar.isnan(V), 0, V), False),
        (scalar.select(scalar.logical_not(scalar.isnan(V)), 0, V), True),
        (scalar.power(V, 0), False),
        (scalar.sign(V), False),
        (scalar.gt(V, 0), False),
        (scalar.cast(V, F), True),
        (scalar.cast(V, dace.int32), False),
        (scalar.checked(scalar.gt(V, 0), 2 * V, 2), True),
    ],
)
def test_which_expressions_keep_nan(expr: Any, keeps: bool) -> None:
    assert keeps_nan(expr, V) is keeps


def test_products_lead_to_their_results() -> None:
    graph, z = network()
    assert watch_points(graph, [z]) == [graph.outputs[0]]
    assert any(isinstance(n, Contraction) for n in graph.nodes())

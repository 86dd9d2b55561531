"""Weights and images with channels last are taken as they are in memory, where no gradients are wanted."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from daceopt import optimized_module
from daceopt.runtime import bridge
from tests.numerics import assert_within_rounding


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes of arguments that calls have copied into rows."""
    shapes: list[tuple[int, ...]] = []
    dense = bridge._dense
    monkeypatch.setattr(bridge, "_dense", lambda tensor: shapes.append(tuple(tensor.shape)) or dense(tensor))
    return shapes


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(16, 32, 3, padding=1), nn.Conv2d(32, 16, 3, groups=2)
        self.up = nn.ConvTranspose2d(16, 24, 3, stride=2)
        self.last = nn.Linear(24, 200)
        self.last.weight = nn.Parameter(torch.randn(24, 200).t())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.up(torch.relu(self.second(self.first(x))))
        return self.last(y.mean((2, 3)))


def network(memory_format: torch.memory_format) -> nn.Module:
    torch.manual_seed(0)
    return Network().to(memory_format=memory_format)


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("frozen", [True, False], ids=["frozen", "no_grad"])
def test_nothing_is_copied_in_a_call(frozen: bool, copied: list[tuple[int, ...]]) -> None:
    model = network(torch.channels_last)
    model.requires_grad_(not frozen)
    x = torch.randn(2, 16, 12, 12).contiguous(memory_format=torch.channels_last)
    own = optimized_module(copy.deepcopy(model), recipe="cpu", fallback="raise")
    for memory_format in (torch.channels_last, torch.contiguous_format, torch.channels_last):
        for module in (model, own):
            module.to(memory_format=memory_format)
        for _ in range(2):
            with torch.no_grad():
                result, reference = own(x), copy.deepcopy(model).double()(x.double())
                assert_within_rounding(result, reference, model(x))
        if memory_format is torch.channels_last:
            assert not copied
        copied.clear()


@pytest.mark.share(2)
@pytest.mark.parametrize("recipe", ["cpu", "none"])
def test_built(recipe: str) -> None:
    model = network(torch.channels_last).requires_grad_(False)
    own = optimized_module(copy.deepcopy(model), recipe=recipe, fallback="raise")
    for batch in (2, 3):
        x = torch.randn(batch, 16, 12, 12).contiguous(memory_format=torch.channels_last)
        assert_within_rounding(own(x), copy.deepcopy(model).double()(x.double()), model(x))


@pytest.mark.usefixtures("interpreted")
def test_gradients_keep_the_order_of_parameters() -> None:
    model, x = network(torch.channels_last), torch.randn(2, 16, 12, 12)
    own = optimized_module(copy.deepcopy(model), recipe="cpu", fallback="raise")
    for module in (model, own):
        module(x).square().sum().backward()
    for ours, theirs in zip(own.parameters(), model.parameters()):
        assert ours.grad is not None and theirs.grad is not None
        assert ours.grad.stride() == theirs.grad.stride() and torch.allclose(ours.grad, theirs.grad, atol=1e-3)

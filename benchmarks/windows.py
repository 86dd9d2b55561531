"""Windows and stencils behind what computes their operands: recipe ``cpu`` without and with polyhedral fusion."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy

import torch
from torch import nn

from benchmarks.contenders import forward, step
from benchmarks.harness import OURS, Budget, Result, at_least, case
from daceopt import optimized_module, recipes
from daceopt.cost.measure import interleave

WITHOUT, EAGER = "recipe cpu", "eager"


class Stem(nn.Module):
    """The stem of a residual network: a convolution, its bias and activation, and a pool of 3 x 3 by steps of 2."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 64, 7, 2, 3)
        self.pool = nn.MaxPool2d(3, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, 3, H, W] -> [N, 64, H/4, W/4]."""
        return self.pool(torch.relu(self.conv(x)))


class Blur(nn.Module):
    """Three neighbours along rows, then along columns, twice, in each channel."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, C, H, W] -> [N, C, H - 4, W - 4]."""
        y = torch.relu(2 * x + 1)
        for _ in range(2):
            y = (y[:, :, :-2] + 2 * y[:, :, 1:-1] + y[:, :, 2:]) * 0.25
            y = (y[..., :-2] + 2 * y[..., 1:-1] + y[..., 2:]) * 0.25
        return y


@case
def stem_pool(budget: Budget) -> Iterator[Result]:
    """Convolution, bias, relu and max pool of 8x3x224x224."""
    yield from _compare("stem-pool", Stem(), (8, 3, 224, 224), budget)


@case
def blur_chain(budget: Budget) -> Iterator[Result]:
    """Four blurs of three neighbours behind a relu, of 8x16x256x256."""
    yield from _compare("blur-chain", Blur(), (8, 16, 256, 256), budget)


def _compare(name: str, module: nn.Module, shape: tuple[int, ...], budget: Budget) -> Iterator[Result]:
    plain = recipes.get("cpu")
    recipe_of = {OURS: plain.after("map-fusion", "polyhedral-fusion"), WITHOUT: plain}
    for measure, make, training in (("forward", forward, False), ("forward + backward", step, True)):
        inputs = (torch.randn(shape, requires_grad=training),)
        modules = {who: optimized_module(deepcopy(module), recipe=r, fallback="raise") for who, r in recipe_of.items()}
        calls = {who: make(m, inputs) for who, m in {**modules, EAGER: module}.items()}
        values = {who: seconds * 1e3 for who, seconds in interleave(calls, seconds=budget.seconds).items()}
        yield Result(name, measure, "ms", values, *at_least(values, 1.0, WITHOUT))

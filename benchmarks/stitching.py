"""Many small kernels side by side: updates of optimizers, and branches of a recommendation model."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import torch
from torch import nn

from benchmarks.contenders import EAGER, step
from benchmarks.harness import OURS, Budget, Result, case
from daceopt import optimized_module
from daceopt.cost.measure import interleave

CPU = "recipe cpu"
PARAMETERS = 100
SHAPES = ((64, 64), (64,), (300, 100), (50, 70), (640,), (128, 128))

Optimizer = Callable[[list[torch.Tensor]], torch.optim.Optimizer]


@case
def updates(budget: Budget) -> Iterator[Result]:
    """The update of 100 small parameters as one compiled function: with and without parallelism stitching."""
    yield from _update("sgd", lambda p: torch.optim.SGD(p, lr=1e-3, momentum=0.9), budget)
    yield from _update("adam", lambda p: torch.optim.Adam(p, lr=1e-3), budget)


def _update(name: str, make: Optimizer, budget: Budget) -> Iterator[Result]:
    torch._dynamo.reset()
    calls: dict[str, Callable[[], object]] = {EAGER: _optimizer(make).step}
    for who, recipe in ((OURS, "apollo"), (CPU, "cpu")):
        options = {"recipe": recipe, "fallback": "raise"}
        calls[who] = torch.compile(_optimizer(make).step, backend="daceopt", options=options, dynamic=False)
    values = {who: seconds * 1e6 for who, seconds in interleave(calls, seconds=budget.seconds).items()}
    yield Result(f"updates {name}", f"{PARAMETERS} parameters", "us", values)


def _optimizer(make: Optimizer) -> torch.optim.Optimizer:
    """After its first step, which makes its state."""
    parameters = [torch.randn(SHAPES[k % len(SHAPES)], requires_grad=True) for k in range(PARAMETERS)]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    optimizer = make(parameters)
    optimizer.step()
    return optimizer


class Recommender(nn.Module):
    """DLRM in small: embedding branches and a dense one, whose products of pairs a second network takes."""

    def __init__(self, tables: int = 8, rows: int = 1000, width: int = 16):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(tables))
        self.bottom = nn.Sequential(nn.Linear(13, 64), nn.ReLU(), nn.Linear(64, width), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(width + (tables + 1) ** 2, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, dense: torch.Tensor, sparse: torch.Tensor) -> torch.Tensor:
        bottom = self.bottom(dense)
        stacked = torch.stack([bottom, *(table(sparse[:, k]).sum(1) for k, table in enumerate(self.tables))], 1)
        pairs = torch.bmm(stacked, stacked.transpose(1, 2)).flatten(1)
        return torch.sigmoid(self.top(torch.cat([bottom, pairs], 1)))


@case
def recommender(budget: Budget) -> Iterator[Result]:
    """Forward and backward of a DLRM with eight tables, batch 1024."""
    inputs = (torch.randn(1024, 13), torch.randint(0, 1000, (1024, 8, 4)))
    torch._dynamo.reset()
    model = Recommender()
    modules = {EAGER: copy.deepcopy(model)}
    for who, recipe in ((OURS, "apollo"), (CPU, "cpu")):
        modules[who] = optimized_module(copy.deepcopy(model), recipe=recipe, fallback="raise")
    calls = {who: step(module, inputs) for who, module in modules.items()}
    values = {who: seconds * 1e3 for who, seconds in interleave(calls, seconds=budget.seconds).items()}
    yield Result("recommender", "forward + backward", "ms", values)

"""The same module for each contender, and the calls that are timed."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch
from torch import nn

from benchmarks.harness import OURS
from daceopt import optimized_module
from daceopt.commands import demo

EAGER, COMPILED = "eager", "torch.compile"
Call = Callable[[], object]


def contenders(model: nn.Module) -> dict[str, nn.Module]:
    """Copies of ``model`` (equal weights, not shared): as it is, under ``torch.compile``, and ours without fallback."""
    torch._dynamo.reset()  # what an earlier case compiled must not count towards the limit of recompilations
    return {
        EAGER: copy.deepcopy(model),
        COMPILED: torch.compile(copy.deepcopy(model), dynamic=False),
        OURS: optimized_module(copy.deepcopy(model), fallback="raise"),
    }


def forward(model: nn.Module, inputs: Sequence[torch.Tensor]) -> Call:
    """A call without gradients."""

    def call() -> object:
        with torch.no_grad():
            return model(*inputs)

    return call


def step(model: nn.Module, inputs: Sequence[torch.Tensor]) -> Call:
    """Forward and backward; gradients of parameters, and of inputs that require them, start from none."""
    leaves = [t for t in [*model.parameters(), *inputs] if t.requires_grad]
    seed = torch.randn_like(demo.first(model(*inputs)).detach())

    def call() -> None:
        for leaf in leaves:
            leaf.grad = None
        demo.first(model(*inputs)).backward(seed)

    return call

"""Memory-bound kernels: mish, softmax, layer norm."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from benchmarks.contenders import COMPILED, contenders, forward, step
from benchmarks.harness import Budget, Result, at_least, case
from daceopt.cost.measure import interleave


@case
def mish(budget: Budget) -> Iterator[Result]:
    """mish of 8x32x224x224."""
    yield from _kernel("mish", nn.Mish(), (8, 32, 224, 224), 2.0, budget)


@case
def softmax(budget: Budget) -> Iterator[Result]:
    """softmax over the last axis of 8x16x512x512."""
    yield from _kernel("softmax", nn.Softmax(dim=-1), (8, 16, 512, 512), 2.0, budget)


@case
def layer_norm(budget: Budget) -> Iterator[Result]:
    """Layer norm over the last axis of 8x512x1024, with weight and bias."""
    yield from _kernel("layer-norm", nn.LayerNorm(1024), (8, 512, 1024), 1.0, budget)


def _kernel(name: str, module: nn.Module, shape: tuple[int, ...], factor: float, budget: Budget) -> Iterator[Result]:
    for measure, make, training in (("forward", forward, False), ("forward + backward", step, True)):
        inputs = (torch.randn(shape, requires_grad=training),)
        calls = {who: make(copy, inputs) for who, copy in contenders(module).items()}
        values = {who: seconds * 1e3 for who, seconds in interleave(calls, seconds=budget.seconds).items()}
        yield Result(name, measure, "ms", values, *at_least(values, factor, COMPILED))

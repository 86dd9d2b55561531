"""Fifteen networks beside eager PyTorch, in both memory formats, and torch.compile."""

from __future__ import annotations

import copy
import gc
import statistics
from collections.abc import Iterator

import torch
from torch import nn

from benchmarks.contenders import COMPILED, EAGER, Call, contenders, forward, step
from benchmarks.harness import OURS, Budget, Result, at_least, case
from benchmarks.models.suite import SUITE, Example
from daceopt.cost.measure import interleave

CHANNELS_LAST = "eager, channels last"
_MEAN = {False: 1.15, True: 1.5}  # goals of the geometric means, in inference and in training


@case
def networks_inference(budget: Budget) -> Iterator[Result]:
    """Calls without gradients, in eval mode."""
    yield from _networks(budget, training=False)


@case
def networks_training(budget: Budget) -> Iterator[Result]:
    """Forward and backward, in training mode."""
    yield from _networks(budget, training=True)


def _networks(budget: Budget, training: bool) -> Iterator[Result]:
    what, ratios = ("training" if training else "inference"), []
    for name, make in SUITE.items():
        torch.manual_seed(0)
        calls = _calls(make(), training, compiled=budget.repeats > 1)
        values = {who: s * 1e3 for who, s in interleave(calls, seconds=budget.seconds).items()}
        peers = [who for who in values if who != OURS]
        ratios.append(min(values[p] for p in peers) / values[OURS])
        yield Result(what, name, "ms", values, *at_least(values, 1.0, *peers))
        del calls
        gc.collect()
    mean, least = statistics.geometric_mean(ratios), _MEAN[training]
    values = {"best peer / ours": mean}
    yield Result(what, f"mean of {len(ratios)}", "x", values, f"{least:g}x the best peer", mean >= least)


def _calls(example: Example, training: bool, compiled: bool) -> dict[str, Call]:
    """What is timed, by contender; a first impression goes without torch.compile, which compiles for minutes."""
    model, inputs = example
    modules = contenders(model)
    if not compiled:
        del modules[COMPILED]
    calls = {who: _call(module, inputs, training) for who, module in modules.items()}
    if any(x.dim() == 4 for x in inputs):
        last = copy.deepcopy(modules[EAGER]).to(memory_format=torch.channels_last)
        images = tuple(x.contiguous(memory_format=torch.channels_last) for x in inputs)
        calls[CHANNELS_LAST] = _call(last, images, training)
    return calls


def _call(module: nn.Module, inputs: tuple[torch.Tensor, ...], training: bool) -> Call:
    module.train(training)
    return step(module, inputs) if training else forward(module, inputs)

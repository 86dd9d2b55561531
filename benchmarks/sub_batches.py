"""GraphTurbo on this CPU: networks of large batches, depth first on parts of them, beside the recipe without that."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import torch
from torch import nn

import daceopt
from benchmarks.contenders import Inputs, forward, step
from benchmarks.harness import Budget, Result, at_least, at_most, case
from benchmarks.models import suite
from benchmarks.models.densenet import DenseNet
from daceopt import optimized_module
from daceopt.cost.measure import interleave

_WHOLE, _PARTS, _CHOSEN = "cpu", "graphturbo", "auto"
_NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, int]]] = {
    "resnet50": (lambda: suite.resnet50()[0], (32, 224)),
    "mobilenet_v2": (lambda: suite.mobilenet_v2()[0], (128, 224)),
    "densenet121": (DenseNet, (32, 224)),
    "unet": (lambda: suite.unet()[0], (8, 256)),
}


@case
def sub_batches(budget: Budget) -> Iterator[Result]:
    """Milliseconds by recipe, in inference and with backward, and megabytes of arrays alive at once in inference."""
    for name, (make, (batch, edge)) in _NETWORKS.items():
        for training in (False, True):
            if budget.wants(f"{name}-training" if training else name):
                yield from _network(name, make(), (torch.randn(batch, 3, edge, edge),), training, budget)


def _network(name: str, model: nn.Module, inputs: Inputs, training: bool, budget: Budget) -> Iterator[Result]:
    model.train(training)
    recipes = (_WHOLE, _PARTS) if training else (_WHOLE, _PARTS, _CHOSEN)  # in training `auto` takes none in parts
    modules = {r: optimized_module(copy.deepcopy(model), recipe=r, fallback="raise") for r in recipes}
    make = step if training else forward
    calls = {r: make(module, inputs) for r, module in modules.items()}
    values = {r: 1e3 * t for r, t in interleave(calls, seconds=budget.seconds, warmup=1, at_least=3).items()}
    ours = {_WHOLE: values[_WHOLE], "daceopt": values[_PARTS]}
    measure = f"{name}, {'forward + backward' if training else 'inference'}"
    yield Result("sub-batches", measure, "ms", values, *at_least(ours, 0.98, _WHOLE))
    if not training:
        peaks = {r: _peak(model, inputs, r) for r in recipes}
        goal = at_most(peaks[_PARTS], peaks[_WHOLE] / 2, "half of the memory")
        yield Result("sub-batches", f"{name}, arrays alive", "MB", peaks, *goal)


def _peak(model: nn.Module, inputs: Inputs, recipe: str) -> float:
    with torch.no_grad():
        return daceopt.explain(model, *inputs, recipe=recipe).peak / 1e6

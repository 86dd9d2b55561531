"""Fifteen networks beside eager PyTorch in both memory formats, torch.compile, ONNX Runtime and OpenVINO."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Iterator

import torch

from benchmarks import peers as _peers  # noqa: F401  (enters other libraries)
from benchmarks.checking import reference
from benchmarks.comparison import compare, entered
from benchmarks.contenders import AUTOTUNED, ENTRIES, QUICK, enter
from benchmarks.harness import Budget, Result, case
from benchmarks.limits import product_limit
from benchmarks.models.suite import SUITE, Example

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
    for name in filter(budget.wants, SUITE):
        result = network(what, name, SUITE[name], training, budget)
        if result.best is not None:
            ratios.append(result.best)
        yield result
        gc.collect()
    if ratios:
        mean, least = statistics.geometric_mean(ratios), _MEAN[training]
        values = {"best peer / ours": mean}
        yield Result(what, f"mean of {len(ratios)}", "x", values, f"{least:g}x the best peer", mean >= least)


def network(what: str, name: str, make: Callable[[], Example], training: bool, budget: Budget) -> Result:
    """A row of case ``what``: the network that ``make`` gives, beside its peers, in inference or in training."""
    torch.manual_seed(0)
    model, inputs = make()
    model.train(training)
    known = QUICK if budget.repeats == 1 else tuple(who for who in ENTRIES if who != AUTOTUNED)
    contenders, absent = enter(model, inputs, training, entered(known, budget))
    check, limit = reference(model, inputs, training), product_limit(model, inputs, training)
    return compare(what, name, contenders, check, budget, limit=limit, absent=absent)

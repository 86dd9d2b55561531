"""Fifteen networks beside eager PyTorch in both memory formats, torch.compile, ONNX Runtime and OpenVINO: in inference
and training, in float32 and under autocast, and whole steps with the update."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import nn

from benchmarks import peers as _peers  # noqa: F401  (enters other libraries)
from benchmarks.checking import reference
from benchmarks.comparison import compare, participants
from benchmarks.contenders import AUTOTUNED, CHANNELS_LAST, COMPILED, EAGER, ENTRIES, QUICK, Inputs, enter
from benchmarks.harness import OURS, Budget, Result, case
from benchmarks.limits import product_limit
from benchmarks.mixed_precision import Mixed
from benchmarks.models.suite import SUITE, Example
from benchmarks.steps import step_reference, steps


@case
def networks_inference(budget: Budget) -> Iterator[Result]:
    """Calls without gradients, in eval mode."""
    yield from networks("inference", budget, 1.15, _of_kind(training=False))


@case
def networks_training(budget: Budget) -> Iterator[Result]:
    """Forward and backward, in training mode."""
    yield from networks("training", budget, 1.5, _of_kind(training=True))


@case
def networks_inference_autocast(budget: Budget) -> Iterator[Result]:
    """Calls without gradients under autocast to bfloat16."""
    yield from networks("inference, bfloat16", budget, 1.15, _of_mixed(training=False))


@case
def networks_training_autocast(budget: Budget) -> Iterator[Result]:
    """Forward and backward, the forward under autocast to bfloat16."""
    yield from networks("training, bfloat16", budget, 1.3, _of_mixed(training=True))


@case
def networks_step(budget: Budget) -> Iterator[Result]:
    """Loss, gradients and update by SGD with momentum: ``training_step`` beside PyTorch's own fused update."""
    yield from networks("training step", budget, 1.35, whole_step)


Row = Callable[[str, str, Callable[[], Example], Budget], Result]


def networks(
    what: str, budget: Budget, mean: float, measured: Row, names: Iterable[str] | None = None
) -> Iterator[Result]:
    """A row for each network (all, if none are named), then the geometric mean of what the best peer takes over ours,
    whose goal is ``mean``."""
    ratios = []
    for name in filter(budget.wants, names or SUITE):
        result = measured(what, name, SUITE[name], budget)
        if result.best is not None:
            ratios.append(result.best)
        yield result
        gc.collect()
    if ratios:
        mean_ratio = statistics.geometric_mean(ratios)
        values = {"best peer / ours": mean_ratio}
        yield Result(what, f"mean of {len(ratios)}", "x", values, f"{mean:g}x the best peer", mean_ratio >= mean)


def _of_kind(training: bool) -> Row:
    return lambda what, name, make, budget: network(what, name, make, training, budget)


def _of_mixed(training: bool) -> Row:
    def row(what: str, name: str, make: Callable[[], Example], budget: Budget) -> Result:
        def make_mixed() -> Example:
            model, inputs = make()
            return Mixed(model), inputs

        return network(what, name, make_mixed, training, budget, limit=None)  # the rates that are known are of float32

    return row


Limit = Callable[[nn.Module, Inputs, bool], float]


def network(
    what: str,
    name: str,
    make: Callable[[], Example],
    training: bool,
    budget: Budget,
    limit: Limit | None = product_limit,
) -> Result:
    """A row of case ``what``: the network that ``make`` gives, beside its peers, in inference or in training."""
    torch.manual_seed(0)
    model, inputs = make()
    model.train(training)
    names = QUICK if budget.repeats == 1 else tuple(who for who in ENTRIES if who != AUTOTUNED)
    contenders, absent = enter(model, inputs, training, participants(names, budget))
    check = reference(model, inputs, training)
    seconds = None if limit is None else limit(model, inputs, training)
    return compare(what, name, contenders, check, budget, limit=seconds, absent=absent)


def whole_step(what: str, name: str, make: Callable[[], Example], budget: Budget) -> Result:
    """A row: steps with the update, beside those of ``budget.peers`` that are modules of PyTorch."""
    torch.manual_seed(0)
    model, inputs = make()
    names = (EAGER, OURS, CHANNELS_LAST) if budget.repeats == 1 else (EAGER, OURS, CHANNELS_LAST, COMPILED)
    contenders, absent = steps(model.train(), inputs, participants(names, budget))
    limit = product_limit(model, inputs, True)
    return compare(what, name, contenders, step_reference(model, inputs), budget, limit=limit, absent=absent)

"""The demo's BERT and ResNet: inference and training."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.contenders import COMPILED, EAGER, forward, step, torch_modules
from benchmarks.harness import Budget, Result, at_least, case
from benchmarks.models.named import MODELS
from daceopt.cost.measure import interleave


@case
def bert(budget: Budget) -> Iterator[Result]:
    """BERT, hidden 256, 4 layers, batch 8, length 128."""
    yield from _network("bert", budget)


@case
def resnet(budget: Budget) -> Iterator[Result]:
    """ResNet-18, batch 8, 3x64x64."""
    yield from _network("resnet", budget)


def _network(name: str, budget: Budget) -> Iterator[Result]:
    model, inputs = MODELS[name]()
    modules = torch_modules(model)
    for measure, make, training in (("forward", forward, False), ("forward + backward", step, True)):
        for module in modules.values():
            module.train(training)
        calls = {who: make(module, inputs) for who, module in modules.items()}
        values = {who: seconds * 1e3 for who, seconds in interleave(calls, seconds=budget.seconds).items()}
        yield Result(name, measure, "ms", values, *at_least(values, 1.0, EAGER, COMPILED))

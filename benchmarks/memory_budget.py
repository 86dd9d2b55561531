"""Time against memory: forward and backward within budgets from all to a fifth of what eager PyTorch saves, and whole
training steps within half of it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import torch
from torch import nn

from benchmarks.contenders import EAGER, Call, step
from benchmarks.harness import OURS, Budget, Result, at_most, case
from benchmarks.models.named import MODELS
from benchmarks.models.perceptron import perceptron
from benchmarks.models.suite import SUITE
from benchmarks.steps import our_step, steps
from daceopt import optimized_module, recipes
from daceopt.cost.measure import interleave
from daceopt.errors import MemoryBudgetError

SHARES = (100, 90, 80, 70, 60, 50, 40, 30, 20)
_HELD, _SLOWER = "50%", 1.35


def _perceptron() -> tuple[nn.Module, list[torch.Tensor]]:
    return perceptron([256] * 17), [torch.randn(1024, 256)]


NETWORKS: dict[str, Callable[[], tuple[nn.Module, list[torch.Tensor]]]] = {
    "perceptron": _perceptron,
    "bert": MODELS["bert"],
    "resnet": MODELS["resnet"],
}


@case
def memory_budget(budget: Budget) -> Iterator[Result]:
    """Milliseconds of forward and backward: a perceptron of 16 layers, the demo's BERT and ResNet; eager PyTorch, no
    budget, and each budget that can be held. Notes: the bytes planned, and why a budget is not among them."""
    for name, make in ((n, m) for n, m in NETWORKS.items() if budget.wants(n)):
        torch.manual_seed(0)
        model, inputs = make()
        calls: dict[str, Call] = {EAGER: step(copy.deepcopy(model).train(), inputs)}
        calls[OURS] = step(optimized_module(copy.deepcopy(model).train(), recipe="cpu", fallback="raise"), inputs)
        notes: dict[str, str] = {}
        for share in SHARES:
            label = f"{share}%"
            call = _within(model, inputs, label, notes)
            if call is None:
                break  # less is not possible either
            calls[label] = call
        values = {who: s * 1e3 for who, s in interleave(calls, seconds=budget.seconds).items()}
        bound = f"{_HELD} in at most {_SLOWER} of the time without a budget"
        goal = at_most(values.get(_HELD, float("inf")), _SLOWER * values[OURS], bound)
        yield Result("memory-budget", name, "ms", values, *goal, notes=notes)


def _within(model: nn.Module, inputs: list[torch.Tensor], share: str, notes: dict[str, str]) -> Call | None:
    """A step within a share of what eager PyTorch saves; None where that is not possible."""
    recipe = recipes.get("cpu")
    own = optimized_module(copy.deepcopy(model).train(), recipe=recipe, memory_budget=share, fallback="raise")
    try:
        call = step(own, inputs)
        call()
    except MemoryBudgetError as error:
        notes[share] = str(error)
        return None
    notes[share] = "; ".join(own.daceopt.stats.choices)
    return call


@case
def budget_step(budget: Budget) -> Iterator[Result]:
    """Milliseconds of whole training steps of the fifteen networks: eager PyTorch with the fused update, ours, and ours
    within half of what eager PyTorch saves and of the gradients."""
    for name in filter(budget.wants, SUITE):
        torch.manual_seed(0)
        model, inputs = SUITE[name]()
        contenders, _ = steps(model.train(), inputs, (EAGER, OURS))
        calls = {who: contender.call for who, contender in contenders.items()}
        notes = {}
        try:
            calls[_HELD] = our_step(copy.deepcopy(model), inputs, _HELD)
            calls[_HELD]()
        except MemoryBudgetError as error:
            del calls[_HELD]
            notes[_HELD] = str(error)
        values = {who: s * 1e3 for who, s in interleave(calls, seconds=budget.seconds).items()}
        bound = f"{_HELD} in at most {_SLOWER} of the time without a budget"
        goal = at_most(values.get(_HELD, float("inf")), _SLOWER * values[OURS], bound)
        yield Result("budget-step", name, "ms", values, *goal, notes=notes)

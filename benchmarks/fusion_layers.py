"""The layers of APOLLO (Zhao et al., MLSys 2022) one after the other, and the sub-graphs of its figures 5 and 6."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence

import torch
from torch import nn

from benchmarks.checking import Check
from benchmarks.contenders import COMPILED, EAGER, forward
from benchmarks.harness import OURS, Budget, Result, at_least, case
from benchmarks.models.apollo_figures import FIGURES, Tensors
from daceopt import optimized_module, recipes
from daceopt.cost.measure import interleave
from daceopt.passes.recipe import Recipe

_SECOND, _THIRD = "memory-stitching", "parallelism-stitching"
_UNFUSED = "unfused"


def layers() -> dict[str, Recipe]:
    """Recipe ``apollo`` with layer I, with I and II, and whole. What our own rules add to the paper's stands in all."""
    whole = recipes.get("apollo")
    return {**_first_layers(whole), OURS: whole}


def _as_published() -> dict[str, Recipe]:
    """The same with the rules of the paper's tables alone, and without any fusion."""
    whole = recipes.get("apollo")
    tables = _first_layers(Recipe("tables", tuple(s for s in whole.steps if "complementary" not in str(s))))
    none = tables["I"].without("aggregation").without("polyhedral-fusion")
    return {_UNFUSED: none, **tables, OURS: whole}


def _first_layers(whole: Recipe) -> dict[str, Recipe]:
    second = whole.without(_THIRD)
    return {"I": second.without(_SECOND), "I+II": second}


@case
def apollo_subgraphs(budget: Budget) -> Iterator[Result]:
    """Microseconds of the six sub-graphs of figures 5 and 6, forward: unfused, layer by layer, and peers."""
    for name, (module, operands, paper) in FIGURES.items():
        if not budget.wants(name):
            continue
        torch._dynamo.reset()
        torch.manual_seed(0)
        inputs = operands()
        modules = {EAGER: module, COMPILED: torch.compile(copy.deepcopy(module), dynamic=False)}
        for who, recipe in _as_published().items():
            modules[who] = optimized_module(copy.deepcopy(module), recipe=recipe, fallback="raise")
        faults = _faults(modules, inputs)
        calls = {who: forward(m, inputs) for who, m in modules.items() if who not in faults}
        values = {who: s * 1e6 for who, s in interleave(calls, seconds=budget.seconds).items()}
        notes = {**faults, "paper": paper}
        yield Result("apollo-subgraphs", f"figure {name}", "us", values, *at_least(values, 1.0, EAGER, COMPILED), notes)


def _faults(modules: dict[str, nn.Module], inputs: Sequence[torch.Tensor]) -> dict[str, str]:
    """Contender -> how its results are wrong; raises AssertionError where these are ours."""
    with torch.no_grad():
        exact: Tensors = modules[EAGER](*(x.double() for x in inputs))
        check = Check(exact, modules[EAGER](*inputs))
        faults: dict[str, str | None] = {who: check.fault(m(*inputs)) for who, m in modules.items()}
    wrong = {who: f"WRONG: {fault}" for who, fault in faults.items() if fault is not None}
    assert not wrong.keys() - {EAGER, COMPILED}, wrong
    return wrong

"""Training steps of APOLLO's five networks (Zhao et al., MLSys 2022, tables 4 and 6): loss, gradients and update."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn

from benchmarks.contenders import COMPILED, EAGER, Call
from benchmarks.fusion_layers import layers
from benchmarks.harness import OURS, Budget, Result, at_least, case
from benchmarks.models.training import TRAININGS, Training
from benchmarks.worker import finish, start
from daceopt import optimized_module, recipes
from daceopt import training_step as training_step_of
from daceopt.cost.measure import interleave


@case
def training_step(budget: Budget) -> Iterator[Result]:
    """Milliseconds of a step with its optimizer: recipe cpu, the layers of apollo one after the other, peers; eager
    PyTorch with its fused update, and all of it as one program."""
    for name in filter(budget.wants, TRAININGS):
        torch.manual_seed(0)
        training = TRAININGS[name]()
        calls = {who: _step(module, training) for who, module in _contenders(training.module).items()}
        calls["eager, fused"] = _step(copy.deepcopy(training.module), training, fused=True)
        calls["one program"] = _program(copy.deepcopy(training.module), training)
        values = {who: s * 1e3 for who, s in interleave(calls, seconds=budget.seconds, warmup=3).items()}
        yield Result("training-step", name, "ms", values, *at_least(values, 1.0, EAGER, COMPILED))


@case
def training_compile(budget: Budget) -> Iterator[Result]:
    """Seconds from importing the compiler to the end of the first step, in new processes with empty caches."""
    for name in filter(budget.wants, TRAININGS):
        with tempfile.TemporaryDirectory() as folder:
            values = {who: finish(start(who, name, Path(folder)))["seconds"] for who in (COMPILED, OURS)}
        yield Result("training-compile", name, "s", values, *at_least(values, 1.0, COMPILED))


def _contenders(model: nn.Module) -> dict[str, nn.Module]:
    torch._dynamo.reset()  # what an earlier network compiled must not count towards the limit of recompilations
    modules = {EAGER: copy.deepcopy(model), COMPILED: torch.compile(copy.deepcopy(model), dynamic=False)}
    for who, recipe in {"cpu": recipes.get("cpu"), **layers()}.items():
        modules[who] = optimized_module(copy.deepcopy(model), recipe=recipe, fallback="raise")
    return modules


def _program(module: nn.Module, training: Training) -> Call:
    step = training_step_of(module.train(), None, training.optimizer(module.parameters()), fallback="raise")
    return lambda: step(*training.batch)


def _step(module: nn.Module, training: Training, fused: bool = False) -> Call:
    module.train()
    optimizer = training.optimizer(module.parameters())
    for group in optimizer.param_groups if fused else ():
        group["fused"] = True

    def call() -> None:
        optimizer.zero_grad(set_to_none=True)
        module(*training.batch).backward()
        optimizer.step()

    return call

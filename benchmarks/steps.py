"""Contenders of a whole training step: loss, gradients, and PyTorch's fused update or ours in the same program."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import nn

from benchmarks.checking import Check, Results, disturb, widen
from benchmarks.contenders import CHANNELS_LAST, COMPILED, EAGER, Call, Contender, Inputs, Unavailable, images_last
from benchmarks.harness import OURS
from daceopt import training_step

_RATE, _MOMENTUM = 1e-3, 0.9


def steps(model: nn.Module, inputs: Inputs, names: Sequence[str]) -> tuple[dict[str, Contender], dict[str, str]]:
    """The contenders of these names, each with a copy of ``model``, and for those that cannot take part the reason."""
    torch._dynamo.reset()  # what an earlier case compiled must not count towards the limit of recompilations
    contenders: dict[str, Contender] = {}
    absent: dict[str, str] = {}
    for name in names:
        try:
            contenders[name] = _contender(name, copy.deepcopy(model), inputs)
        except Unavailable as reason:
            absent[name] = str(reason)
    return contenders, absent


def step_reference(model: nn.Module, inputs: Inputs) -> Check:
    """The check: what two steps add to the parameters, so that the optimizer's state has taken part."""
    wide = copy.deepcopy(model).double()
    exact = _updates(wide, _of_torch(wide, [widen(x) for x in inputs], fused=False))()
    narrow = copy.deepcopy(model)
    updated = _updates(narrow, _of_torch(narrow, inputs, fused=False))()
    others = disturb(model, inputs, lambda other, moved: _updates(other, _of_torch(other, tuple(moved), fused=False)))
    return Check(exact, updated, others)


def _contender(name: str, model: nn.Module, inputs: Inputs) -> Contender:
    if name == OURS:
        call = our_step(model, inputs)
    elif name == EAGER:
        call = _of_torch(model, inputs)
    elif name == CHANNELS_LAST:
        model = model.to(memory_format=torch.channels_last)
        call = _of_torch(model, images_last(inputs))
    elif name == COMPILED:
        call = _of_torch(model, inputs, torch.compile(model, dynamic=False))
    else:
        raise Unavailable("takes no training steps")
    return Contender(call, _updates(model, call))


def _loss(result: torch.Tensor) -> torch.Tensor:
    return result.square().mean()


def our_step(model: nn.Module, inputs: Inputs, memory_budget: str | None = None) -> Call:
    """A step of ``model`` as one program, within ``memory_budget`` if there is one."""
    step = training_step(model, _loss, _optimizer(model), fallback="raise", memory_budget=memory_budget)
    return lambda: step(*inputs)


def _of_torch(model: nn.Module, inputs: Inputs, called: nn.Module | None = None, fused: bool = True) -> Call:
    optimizer, run = _optimizer(model, fused), model if called is None else called

    def call() -> None:
        optimizer.zero_grad(set_to_none=True)
        _loss(run(*inputs)).backward()
        optimizer.step()

    return call


def _optimizer(model: nn.Module, fused: bool = False) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), _RATE, _MOMENTUM, fused=fused)


def _updates(model: nn.Module, call: Call) -> Results:
    def run() -> list[torch.Tensor]:
        before = [p.detach().clone() for p in model.parameters()]
        call()
        call()
        return [p.detach() - b for p, b in zip(model.parameters(), before, strict=True)]

    return run

"""Who is measured: the same module for each contender, what is timed of it, and what it computes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from benchmarks.checking import Results, results
from benchmarks.harness import OURS
from daceopt import optimized_module
from daceopt.commands import demo

EAGER, CHANNELS_LAST, COMPILED, AUTOTUNED = (
    "eager",
    "eager, channels last",
    "torch.compile",
    "torch.compile, max-autotune",
)
Call = Callable[[], object]
Inputs = Sequence[torch.Tensor]


class Unavailable(Exception):
    """A contender that cannot take part, with the reason."""


@dataclass(frozen=True)
class Contender:
    """``call`` is timed; ``results`` gives what it computes (:func:`benchmarks.checking.results`)."""

    call: Call
    results: Results


Entry = Callable[[nn.Module, Inputs, bool], Contender]
"""Module, inputs, and whether forward and backward are measured -> a contender. Raises Unavailable."""


def torch_modules(model: nn.Module) -> dict[str, nn.Module]:
    """Copies of ``model`` (equal weights, not shared): as it is, under ``torch.compile``, and ours without fallback."""
    torch._dynamo.reset()  # what an earlier case compiled must not count towards the limit of recompilations
    return {
        EAGER: copy.deepcopy(model),
        COMPILED: torch.compile(copy.deepcopy(model), dynamic=False),
        OURS: optimized_module(copy.deepcopy(model), fallback="raise"),
    }


def forward(model: nn.Module, inputs: Inputs) -> Call:
    """A call without gradients."""

    def call() -> object:
        with torch.no_grad():
            return model(*inputs)

    return call


def step(model: nn.Module, inputs: Inputs) -> Call:
    """Forward and backward; gradients of parameters, and of inputs that require them, start from none."""
    leaves = [t for t in [*model.parameters(), *inputs] if t.requires_grad]
    seed = torch.randn_like(demo.first(model(*inputs)).detach())

    def call() -> None:
        for leaf in leaves:
            leaf.grad = None
        demo.first(model(*inputs)).backward(seed)

    return call


# -------------------------------------------------------------------- modules of PyTorch


def _of_module(module: nn.Module, inputs: Inputs, training: bool) -> Contender:
    module.train(training)
    call = step(module, inputs) if training else forward(module, inputs)
    return Contender(call, results(module, inputs, training))


def _eager(model: nn.Module, inputs: Inputs, training: bool) -> Contender:
    return _of_module(copy.deepcopy(model), inputs, training)


def _channels_last(model: nn.Module, inputs: Inputs, training: bool) -> Contender:
    images = images_last(inputs)
    return _of_module(copy.deepcopy(model).to(memory_format=torch.channels_last), images, training)


def images_last(inputs: Inputs) -> list[torch.Tensor]:
    """``inputs``, images with their channels last. Raises Unavailable where there are none."""
    if not any(x.dim() == 4 for x in inputs):
        raise Unavailable("no images among the inputs")
    return [
        x.detach().contiguous(memory_format=torch.channels_last).requires_grad_(x.requires_grad) if x.dim() == 4 else x
        for x in inputs
    ]


def _compile(mode: str | None) -> Entry:
    def entry(model: nn.Module, inputs: Inputs, training: bool) -> Contender:
        return _of_module(torch.compile(copy.deepcopy(model), dynamic=False, mode=mode), inputs, training)

    return entry


def _ours(model: nn.Module, inputs: Inputs, training: bool) -> Contender:
    return _of_module(optimized_module(copy.deepcopy(model), fallback="raise"), inputs, training)


ENTRIES: dict[str, Entry] = {
    EAGER: _eager,
    OURS: _ours,
    CHANNELS_LAST: _channels_last,
    COMPILED: _compile(None),
    AUTOTUNED: _compile("max-autotune"),
}
"""Contender -> its entry, in the order in which they take turns; ``peers/`` adds those of other libraries."""

QUICK = (EAGER, OURS, CHANNELS_LAST)
"""Who a first impression is of: the others compile for minutes."""


def enter(
    model: nn.Module, inputs: Inputs, training: bool, names: Sequence[str]
) -> tuple[dict[str, Contender], dict[str, str]]:
    """The contenders of these names, and for those that cannot take part the reason. Raises what ours raises."""
    torch._dynamo.reset()  # as above
    contenders: dict[str, Contender] = {}
    absent: dict[str, str] = {}
    for name in names:
        try:
            contenders[name] = ENTRIES[name](model, inputs, training)
        except Unavailable as reason:
            absent[name] = str(reason)
    return contenders, absent


def wrong(contenders: Mapping[str, Contender], fault: Callable[[Sequence[torch.Tensor]], str | None]) -> dict[str, str]:
    """Contender -> what is wrong with what it computes."""
    faults = {name: fault(c.results()) for name, c in contenders.items()}
    return {name: text for name, text in faults.items() if text is not None}

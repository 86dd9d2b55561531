"""One call of a graph, to be repeated under a clock: on copies of its arguments, with its backward pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import torch

from daceopt.runtime.places import device_of

if TYPE_CHECKING:
    from daceopt.capture.torch.traced import Traced


def repeatable(
    call: Callable[..., Any], arguments: Sequence[object], requires_grad: Sequence[bool] = (), trains: bool = False
) -> Callable[[], object]:
    """A call on copies of ``arguments``: nothing of the user's changes. ``requires_grad``: which of the first of them
    do; ``trains``: with its backward pass.

    The random numbers of the host stay where they are. On a device it says by the device's clock what it took.
    """
    copies = [_own(a, needed) for a, needed in zip_longest(arguments, requires_grad, fillvalue=False)]
    device = device_of(copies)

    def run() -> None:
        with torch.random.fork_rng(devices=[]), torch.set_grad_enabled(trains):
            results = [r for r in call(*copies) if isinstance(r, torch.Tensor) and r.requires_grad]
            if trains and results:
                torch.autograd.backward(results, [torch.ones_like(r) for r in results])
        for argument in copies:
            if isinstance(argument, torch.Tensor):
                argument.grad = None

    if device.type != "cuda":
        return run
    from daceopt.cost.measure import on_stream

    return on_stream(run, device=device)


def trains(traced: Traced) -> bool:
    """Whether a backward pass may follow a call of the graph: a result, or an argument by it, requires a gradient.
    (Dynamo compiles what runs under ``torch.no_grad`` with gradients on.)"""
    becomes = (after and not before for before, after in zip(traced.requires_grad, traced.changed, strict=True))
    return any(traced.results) or any(becomes)


def _own(argument: object, requires_grad: bool) -> object:
    if not isinstance(argument, torch.Tensor):
        return argument
    return argument.detach().clone().requires_grad_(requires_grad)

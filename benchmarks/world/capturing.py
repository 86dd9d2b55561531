"""What becomes of a program's networks when they are captured, without compiling: whole, in pieces, or eager."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any, NamedTuple

import torch
from torch import nn

from benchmarks.world.program import Program, members, stepped
from daceopt.modules.captured import capture_graphs
from daceopt.modules.options import check


class Call(NamedTuple):
    """The arguments of a network's first call, and whether gradients were on."""

    network: nn.Module
    args: Any
    kwargs: Any
    grad: bool


class _AllCalled(BaseException):
    """Ends a step that has called every network; no step of a user catches it."""


def capture(program: Program, training: bool) -> dict[str, Any]:
    """``status`` of the first call of each network (the worst of them), the ``graphs`` and the ``reasons``; ``peer``:
    whether torch.compile takes them whole. Where the first call is in pieces, the second: it may find hooks that the
    first has installed."""
    calls = _first_calls(program, training)
    found = _graphs(calls)
    if found["status"] != "whole":
        calls = [call._replace(network=_called(call)) for call in calls]
        found = _graphs(calls)
    return {**found, "peer": _peer(calls)}


def _graphs(calls: list[Call]) -> dict[str, Any]:
    found = []
    for call in calls:
        torch._dynamo.reset()
        with torch.set_grad_enabled(call.grad):
            found.append(capture_graphs(call.network, call.args, call.kwargs, check(fallback="silent")))
    counts = [each.whole for each in found]
    reasons = list(dict.fromkeys(b.text for each in found for b in (*each.refused, *each.breaks)))
    whole = all(count == 1 for count in counts) and not reasons
    return {
        "status": "whole" if whole else "pieces" if any(counts) else "eager",
        "graphs": sum(counts),
        "reasons": reasons,
    }


def _called(call: Call) -> nn.Module:
    """A copy of the network that eager PyTorch has called."""
    network = copy.deepcopy(call.network)
    with torch.set_grad_enabled(call.grad):
        network(*copy.deepcopy(call.args), **copy.deepcopy(call.kwargs))
    return network


def _first_calls(program: Program, training: bool) -> list[Call]:
    """Of the networks as they were before the step, which may leave in them what cannot be copied; the step ends at the
    first call of the last of them."""
    twin = copy.deepcopy(program.networks)
    calls: dict[int, Call] = {}
    with ExitStack() as stack, suppress(_AllCalled):
        for at, (network, own) in enumerate(zip(members(twin), members(program.networks))):
            hook = network.register_forward_pre_hook(_noting(calls, at, program, own), with_kwargs=True)
            stack.callback(hook.remove)
        stepped(program, twin, training)
    return [calls[at] for at in sorted(calls)]


def _noting(calls: dict[int, Call], at: int, program: Program, own: nn.Module) -> Callable[..., None]:
    def note(_: nn.Module, args: Any, kwargs: Any) -> None:
        calls.setdefault(at, Call(own, args, dict(kwargs), torch.is_grad_enabled()))
        if len(calls) == len(members(program.networks)):
            raise _AllCalled

    return note


def _peer(calls: list[Call]) -> str:
    """``whole`` where torch.compile makes one graph of each call, or the first line of why it does not."""
    for network, args, kwargs, grad in calls:
        torch._dynamo.reset()
        with torch.set_grad_enabled(grad):
            try:
                torch.compile(copy.deepcopy(network), backend="eager", fullgraph=True)(*args, **kwargs)
            except Exception as error:
                return first_line(error)
    return "whole"


def first_line(error: BaseException) -> str:
    """An error in a line."""
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"[:200]

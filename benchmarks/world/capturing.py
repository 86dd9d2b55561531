"""What becomes of a program's networks when they are captured, without compiling: whole, in pieces, or eager."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import nn

from benchmarks.world.program import Program, members, stepped
from daceopt.modules.captured import captured
from daceopt.modules.options import check


class Call(NamedTuple):
    """The arguments of a network's first call, and whether gradients were on."""

    network: nn.Module
    args: Any
    kwargs: Any
    grad: bool


def capture(program: Program, training: bool) -> dict[str, Any]:
    """``status`` of the first call of each network (the worst of them), the ``graphs`` and the ``reasons``; ``peer``:
    whether torch.compile takes them whole."""
    calls = _first_calls(program, training)
    found = []
    for call in calls:
        torch._dynamo.reset()
        with torch.set_grad_enabled(call.grad):
            found.append(captured(call.network, call.args, call.kwargs, check(fallback="silent")))
    counts = [len(each.graphs) for each in found]
    reasons = list(dict.fromkeys(text for each in found for text in (*each.refused, *each.breaks)))
    whole = all(count == 1 for count in counts) and not reasons
    status = "whole" if whole else "pieces" if any(counts) else "eager"
    return {"status": status, "graphs": sum(counts), "reasons": reasons, "peer": _peer(calls)}


def _first_calls(program: Program, training: bool) -> list[Call]:
    networks = copy.deepcopy(program.networks)
    calls: list[Call] = []
    with _noted(members(networks), calls):
        stepped(program, networks, training)
    return calls


@contextmanager
def _noted(networks: list[nn.Module], calls: list[Call]) -> Iterator[None]:
    def note(network: nn.Module, args: Any, kwargs: Any) -> None:
        if network not in [call.network for call in calls]:
            calls.append(Call(network, args, dict(kwargs), torch.is_grad_enabled()))

    hooks = [network.register_forward_pre_hook(note, with_kwargs=True) for network in networks]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


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

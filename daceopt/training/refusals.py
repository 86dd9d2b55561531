"""Which calls of a training step could not be one program. Another call may be, once the obstacle is gone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from daceopt.torch_internals.pytree import tree_flatten

LIMIT = 16
"""Kinds of calls that are tried again; beyond it nothing is that was not compiled before."""

_PLAIN = (bool, int, str, type(None))


class Refusals:
    """Reasons by kinds of calls: a call of a kind that was refused before costs no attempt to compile it."""

    def __init__(self) -> None:
        self._reasons: dict[Any, str] = {}

    def __bool__(self) -> bool:
        return bool(self._reasons)

    def add(
        self, objective: nn.Module, arguments: tuple[object, ...], kwargs: Mapping[str, object], reason: str
    ) -> None:
        """A call was refused."""
        if len(self._reasons) < LIMIT:
            self._reasons[_kind(objective, arguments, kwargs)] = reason

    def reason(self, objective: nn.Module, arguments: tuple[object, ...], kwargs: Mapping[str, object]) -> str | None:
        """Why a call like this one was refused; the latest reason where too many were; None where it may be tried."""
        reason = self._reasons.get(_kind(objective, arguments, kwargs))
        if reason is None and len(self._reasons) >= LIMIT:
            return next(reversed(self._reasons.values()))
        return reason


def _kind(objective: nn.Module, arguments: tuple[object, ...], kwargs: Mapping[str, object]) -> Any:
    """What of a call may decide whether it is refused, but its sizes: they change from batch to batch."""
    leaves, form = tree_flatten((arguments, dict(kwargs)))
    parameters = tuple((p.requires_grad, p.grad is not None and p.grad.layout) for p in objective.parameters())
    autocast = torch.is_autocast_enabled("cpu"), torch.is_autocast_enabled("cuda")
    return form, tuple(map(_leaf, leaves)), parameters, tuple(map(_module, objective.modules())), autocast


def _module(module: nn.Module) -> Any:
    hooks = module._forward_pre_hooks, module._forward_hooks, module._backward_pre_hooks, module._backward_hooks
    return module.training, tuple(tuple(h) for h in hooks)


def _leaf(value: object) -> Any:
    if isinstance(value, torch.Tensor):
        return type(value), value.dtype, value.dim(), value.layout, value.device, value.requires_grad
    return (type(value), value if isinstance(value, _PLAIN) else None)

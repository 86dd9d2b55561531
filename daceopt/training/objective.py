"""What a training step differentiates: the loss of a model's results, as one module."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn


class Objective(nn.Module):
    """``loss(model(*inputs, **kwargs), *targets)``, or the model's own result where there is no loss.

    The last ``targets`` of the arguments go to the loss.
    """

    def __init__(self, model: nn.Module, loss: Callable[..., Any] | None, targets: int) -> None:
        super().__init__()
        self.model, self.loss, self.targets = model, loss, targets

    def forward(self, *arguments: object, **kwargs: object) -> Any:
        """The loss, as the function that computes it gives it."""
        first = len(arguments) - self.targets
        result = self.model(*arguments[:first], **kwargs)
        return result if self.loss is None else self.loss(result, *arguments[first:])


def target_count(loss: Callable[..., Any] | None, targets: int | None) -> int:
    """How many arguments the loss takes beside the model's result: ``targets``, or those without a default.

    Raises ValueError where the loss does not say.
    """
    if targets is not None or loss is None:
        return targets or 0
    called = loss.forward if isinstance(loss, nn.Module) else loss
    try:
        parameters = list(inspect.signature(called).parameters.values())
    except (TypeError, ValueError):
        raise ValueError(f"targets=None and {_name(loss)} has no signature; expected targets=, a number") from None
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        raise ValueError(f"targets=None and {_name(loss)} takes any number of arguments; expected targets=, a number")
    needed = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty]
    return max(len(needed) - 1, 0)


def check_loss(value: object) -> torch.Tensor:
    """Raise TypeError unless the loss gave a tensor."""
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"the loss is of type {type(value).__name__}; expected a tensor of one element")
    return value


def _name(loss: object) -> str:
    return str(getattr(loss, "__name__", type(loss).__name__))

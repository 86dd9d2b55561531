"""Batch normalization whose momentum is a tensor: the average of all batches so far."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.constant import ConstantVariable


def momentum_of(args: Any, kwargs: Any) -> VariableTracker:
    """Dynamo's variable for the momentum of a call of ``batch_norm``."""
    return kwargs.get("momentum") or (args[6] if len(args) > 6 else ConstantVariable.create(0.1))


def normalized_with_average(
    x: torch.Tensor,
    mean: torch.Tensor,
    variance: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    training: bool,
    momentum: torch.Tensor,
    eps: float,
) -> torch.Tensor:
    """``batch_norm`` in training, whose momentum is a tensor."""
    own = torch.zeros_like(mean), torch.zeros_like(variance)
    result = nn.functional.batch_norm(x, *own, weight, bias, training, 1.0, eps)
    with torch.no_grad():
        for running, found in zip((mean, variance), own):
            running.mul_(1 - momentum).add_(found * momentum)
    return result

"""Batch normalization whose momentum is a tensor: the average of all batches so far."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from daceopt.torch_internals.dynamo_tracing import ConstantVariable, VariableTracker


def momentum_of(args: Any, kwargs: Any) -> VariableTracker:
    """Dynamo's variable for the momentum of a call of ``batch_norm``."""
    return kwargs.get("momentum") or (args[6] if len(args) > 6 else ConstantVariable.create(0.1))


def normalize_with_average(
    x: torch.Tensor,
    mean: torch.Tensor | None,
    variance: torch.Tensor | None,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    training: bool = False,
    momentum: torch.Tensor | float = 0.1,
    eps: float = 1e-5,
) -> torch.Tensor:
    """``batch_norm`` whose momentum is a tensor."""
    if not training or mean is None or variance is None:
        return nn.functional.batch_norm(x, mean, variance, weight, bias, training, eps=eps)
    own = mean.clone(), variance.clone()  # an empty batch leaves them
    result = nn.functional.batch_norm(x, *own, weight, bias, training, 1.0, eps)
    with torch.no_grad():
        for running, own_moment in zip((mean, variance), own):
            moved = running * (1 - momentum) + own_moment * momentum
            running.copy_(torch.where(own_moment == running, running, moved))
    return result

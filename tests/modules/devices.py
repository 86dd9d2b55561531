"""Tests that need a CUDA device."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional


def on_device(test: Any) -> Any:
    """A test that is skipped, with the reason, where there is no device; libraries compute in float32, not in TF32."""
    return pytest.mark.gpu(pytest.mark.usefixtures("device")(test))


def stepped(
    trained: Iterable[tuple[nn.Module, torch.optim.Optimizer]], x: torch.Tensor, target: torch.Tensor
) -> list[torch.Tensor]:
    """Each module does a step towards ``target`` in its own type; the losses before it."""
    losses = []
    for module, optimizer in trained:
        kind = next(module.parameters()).dtype
        optimizer.zero_grad()
        loss = functional.mse_loss(module(x.to(kind)), target.to(kind))
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses

"""Tensors under PyTorch's functionalization, and what they are below it."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.functional_tensor import FunctionalTensor


def plain(value: Any) -> Any:
    """A tensor as it is now below functionalization; other values as they are."""
    if not isinstance(value, FunctionalTensor):
        return value
    torch._sync(value)
    return torch._from_functional_tensor(value.elem)


def snapshot(value: Any) -> Any:
    """A tensor of its own that stays as this one is now; other values as they are."""
    return FunctionalTensor.to_functional(plain(value)) if isinstance(value, FunctionalTensor) else value


def replace(tensor: FunctionalTensor, value: torch.Tensor) -> None:
    """Give a tensor, and what it is a view of, a new value."""
    torch._functionalize_replace(tensor.elem, value)
    torch._functionalize_commit_update(tensor.elem)
    torch._sync(tensor)

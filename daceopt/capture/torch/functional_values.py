"""Tensors under PyTorch's functionalization, and what they are below it."""

from __future__ import annotations

from typing import Any

from daceopt.torch_internals.functional_tensors import FunctionalTensor, value_of


def plain(value: object) -> Any:
    """A tensor as it is now below functionalization; other values as they are."""
    if not isinstance(value, FunctionalTensor):
        return value
    return value_of(value)


def snapshot(value: object) -> object:
    """A tensor of its own that stays as this one is now; other values as they are."""
    return FunctionalTensor.to_functional(plain(value)) if isinstance(value, FunctionalTensor) else value

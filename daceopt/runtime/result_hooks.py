"""Hooks on results of a program: only what has a gradient has its hooks called, as in eager PyTorch.

There each result hangs on a node of its own, which a backward pass that does not come to it leaves alone. One node
stands for all results of a program, and PyTorch calls the hooks of a result without a gradient there with None.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch

Hook = Callable[["torch.Tensor"], Any]


class _Hooks(OrderedDict[int, Hook]):
    """The hooks of a tensor as PyTorch keeps them, and calls them."""

    def __setitem__(self, key: int, hook: Hook) -> None:
        super().__setitem__(key, lambda grad: None if grad is None else hook(grad))


def install(function: type[torch.autograd.Function]) -> None:
    """Let this be so for the results of a custom function."""
    node: Any = function._backward_cls
    register = node._register_hook_dict

    def register_present(self: object, tensor: torch.Tensor) -> None:
        tensor._backward_hooks = _Hooks()  # which is empty until now
        register(self, tensor)

    node._register_hook_dict = register_present

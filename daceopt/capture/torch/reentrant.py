"""Regions of ``torch.utils.checkpoint`` with ``use_reentrant``, which autograd enters by their arguments alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from daceopt.torch_internals.dynamo_tracing import Translator, VariableTracker, switch_gradients
from daceopt.torch_internals.torch_operators import checkpoint_arguments


def call(
    original: Callable[..., Any], self: VariableTracker, tx: Translator, args: Any, kwargs: Any
) -> VariableTracker:
    """Dynamo's call of a region: it takes each for one that is not reentrant. Where no argument requires a gradient,
    nothing in one that is has any."""
    if not torch.is_grad_enabled() or not _is_reentrant(kwargs) or any(_requires_grad(a) for a in args[1:]):
        return original(self, tx, args, kwargs)
    with switch_gradients(tx, False):
        return args[0].call_function(tx, list(args[1:]), checkpoint_arguments(kwargs))


def _is_reentrant(kwargs: Any) -> bool:
    """As is a region that does not say."""
    flag = kwargs.get("use_reentrant")
    return flag is None or flag.as_python_constant() is not False


def _requires_grad(argument: Any) -> bool:
    return bool(argument.is_tensor() and argument.realize().requires_grad)

"""Why a step runs in parts: what users hang between a gradient and an update, and optimizers without a rule."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import torch
from torch import nn

from daceopt.modules.dispatch import is_transformed, strange_mode
from daceopt.torch_internals import modes
from daceopt.torch_internals.modes import has_global_module_hook
from daceopt.training.optimizers import BY_CLASS
from daceopt.training.sharded_state import ShardGuard

_WRAPPERS = ("DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule")
"""Classes of modules that send gradients elsewhere while they are computed."""


def permanent(
    model: nn.Module, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler | None = None
) -> str | None:
    """What no later call is without; None where a step can be one program."""
    if type(optimizer) not in BY_CLASS:
        names = ", ".join(c.__name__ for c in BY_CLASS)
        return f"there is no update rule for {type(optimizer).__name__}; expected one of {names}"
    if scaler is not None and scaler.is_enabled():
        return "a GradScaler looks at all gradients before the update"
    wrapped = next((n for m in model.modules() for c in type(m).__mro__ if (n := c.__name__) in _WRAPPERS), None)
    return None if wrapped is None else f"{wrapped} exchanges gradients between processes"


def of_call(optimizer: torch.optim.Optimizer) -> str | None:
    """What stands in the way now."""
    return next(chain(_around(), _of_optimizer(optimizer)), None)


def _around() -> Iterator[str]:
    if not torch.is_grad_enabled():
        yield "gradients are switched off"
    if has_global_module_hook():
        yield "hooks of all modules are registered"
    if modes.function_mode_count() and (mode := strange_mode()):
        yield f"a mode of functions is active ({mode})"
    if is_transformed():
        yield "another tracer or transform looks at the step"


def _of_optimizer(optimizer: torch.optim.Optimizer) -> Iterator[str]:
    step = optimizer.__dict__.get("step")
    if step is not None and not hasattr(step, "_wrapped_by_lr_sched"):
        yield "the optimizer's step was replaced"
    hooks = [*optimizer._optimizer_step_pre_hooks.values(), *optimizer._optimizer_step_post_hooks.values()]
    if any(not isinstance(hook, ShardGuard) for hook in hooks):
        yield "the optimizer has hooks"
    if modes.has_global_optimizer_hook():
        yield "hooks of all optimizers are registered"
    if getattr(optimizer, "grad_scale", None) is not None or getattr(optimizer, "found_inf", None) is not None:
        yield "a GradScaler drives the optimizer"
    for group in optimizer.param_groups:
        if group.get("differentiable"):
            yield "the optimizer is differentiable"
        if group.get("capturable") and any(p.device.type == "cpu" for p in group["params"]):
            yield "the optimizer is capturable, which PyTorch refuses on the CPU"
        if any(p._backward_hooks or p._post_accumulate_grad_hooks for p in group["params"]):
            yield "a parameter has a hook"

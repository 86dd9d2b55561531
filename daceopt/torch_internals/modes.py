"""What else looks at calls of PyTorch: modes of functions and operators, tracers, hooks of all modules."""

from __future__ import annotations

from typing import Any

import torch
from torch.optim import optimizer as _optimizer

from daceopt.torch_internals.release import private_names

with private_names():
    from torch.nn.modules.module import _has_any_global_hook
    from torch.overrides import _get_current_function_mode_stack
    from torch.utils._device import DeviceContext
    from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
    from torch.utils._python_dispatch import _disable_current_modes
    from torch.utils._python_dispatch import is_traceable_wrapper_subclass as is_traceable_wrapper_subclass

    # Whether there are hooks of the calls of all modules
    has_global_module_hook = _has_any_global_hook

    # A block without the modes of operators that are active
    without_modes = _disable_current_modes

    # How many modes of functions, and of operators, are active in this thread
    function_mode_count, operator_mode_count = torch._C._len_torch_function_stack, torch._C._len_torch_dispatch_stack

    # What ``torch.jit.trace`` keeps of the trace that it makes in this thread; None where it makes none
    jit_trace = torch._C._get_tracing_state

    _optimizer_hooks = _optimizer._global_optimizer_pre_hooks, _optimizer._global_optimizer_post_hooks


def function_modes() -> list[Any]:
    """The active modes of functions, outermost first, without that of a default device."""
    return [mode for mode in _get_current_function_mode_stack() if type(mode) is not DeviceContext]


def has_global_optimizer_hook() -> bool:
    """Whether there are hooks of the steps of all optimizers."""
    return any(_optimizer_hooks)

"""Transforms of ``torch.func`` that are active in this thread, ``vmap`` say, and tensors that stand for batches."""

from __future__ import annotations

from pathlib import Path

import torch

from daceopt.torch_internals.release import private_names

with private_names():
    from torch._C import _functorch
    from torch._functorch.pyfunctorch import temporarily_pop_interpreter_stack
    from torch._functorch.utils import unwrap_dead_wrappers as unwrap_dead_wrappers

    # A block without the innermost transform
    outside_of_transform = temporarily_pop_interpreter_stack

    # Whether any transform is active in this thread, and the innermost one, None without
    are_transforms_active = torch._C._are_functorch_transforms_active
    innermost_transform = _functorch.peek_interpreter_stack

    # How many transforms are, and how to leave those beyond a number of them
    depth = _functorch.get_dynamic_layer_stack_depth
    leave_transforms = _functorch.pop_dynamic_layer_stack_and_undo_to_depth

    # Tensors of transforms, and those of ``vmap``: their level, their axis of the batch, the tensor without a transform
    is_wrapped = _functorch.is_functorch_wrapped_tensor
    is_batched = _functorch.is_batchedtensor
    level_of = _functorch.maybe_get_level
    batch_axis = _functorch.maybe_get_bdim
    unwrapped = _functorch.get_unwrapped
    add_batch = _functorch._add_batch_dim

    # The older kind of batched tensors, which autograd's own functions still make
    add_old_batch, remove_old_batch = torch._add_batch_dim, torch._remove_batch_dim
    _OLD, _OLD_MODE = map(torch._C._dispatch_key_parse, ("Batched", "VmapMode"))
    _keys, _is_included = torch._C._dispatch_keys, torch._C._dispatch_tls_is_dispatch_key_included
    _enter_old, _leave_old = torch._C._vmapmode_increment_nesting, torch._C._vmapmode_decrement_nesting
    FOLDER = str(Path(torch._functorch.__file__ or "").parent)
    """Where the code of the transforms is."""


def is_in_old_vmap() -> bool:
    """Whether a ``vmap`` of the older kind is active in this thread."""
    return bool(_is_included(_OLD_MODE))


def is_old_batched(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a batch of the older kind."""
    return bool(_keys(tensor).has(_OLD))


def old_vmap_depth() -> int:
    """How many of the older kind are active in this thread."""
    deepest = _enter_old() - 1
    _leave_old()
    return int(deepest)

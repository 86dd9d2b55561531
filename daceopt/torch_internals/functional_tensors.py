"""Tensors under PyTorch's functionalization, which writes them by making new values."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from daceopt.torch_internals.release import private_names

with private_names():
    from torch._C import _functionalization
    from torch._subclasses.functional_tensor import FunctionalTensor as FunctionalTensor
    from torch._subclasses.functional_tensor import FunctionalTensorMode as FunctionalTensorMode

    _sync, _plain, _view_metas = (
        torch._sync,
        torch._from_functional_tensor,
        _functionalization.get_view_meta_sequence,
    )
    _replace, _commit = torch._functionalize_replace, torch._functionalize_commit_update
    _changed_storage, _has_new_value = (
        torch._functionalize_was_storage_changed,
        torch._functionalize_has_data_mutation,
    )
    _excluded = torch._C._ExcludeDispatchKeyGuard
    _FUNCTIONALIZE = torch._C.DispatchKeySet(torch._C.DispatchKey.Functionalize)


def value_of(tensor: FunctionalTensor) -> torch.Tensor:
    """What a tensor holds, with all that was written into it and into its views."""
    _sync(tensor)
    return _plain(tensor.elem)


def set_value(tensor: FunctionalTensor, value: torch.Tensor) -> None:
    """Give a tensor, and what it is a view of, a new value."""
    _replace(tensor.elem, value)
    _commit(tensor.elem)
    _sync(tensor)


def has_new_storage(tensor: FunctionalTensor) -> bool:
    """Whether it got another storage (by ``set_`` or ``.data``)."""
    _sync(tensor)
    return bool(_changed_storage(tensor.elem))


def is_written(tensor: FunctionalTensor) -> bool:
    """Whether its elements were written."""
    _sync(tensor)
    return bool(_has_new_value(tensor.elem))


def views_of(tensor: FunctionalTensor) -> Sequence[Any]:
    """The views, from the base to the tensor; the class of each says by which operator (``unfold_ViewMeta``)."""
    return _view_metas(tensor.elem)


def without_functionalization() -> AbstractContextManager[Any]:
    """A block in which C++ does not functionalize: ``FunctionalTensorMode`` in Python does."""
    return _excluded(_FUNCTIONALIZE)

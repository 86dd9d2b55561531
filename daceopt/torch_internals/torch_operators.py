"""Operators: overloads, higher ones, what the dispatcher knows of them, and custom ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from daceopt.torch_internals.release import name_if_known, private_names

with private_names():
    from torch._higher_order_ops.associative_scan import generic_associative_scan as generic_associative_scan
    from torch._higher_order_ops.wrap import TagActivationCheckpoint
    from torch._library.custom_ops import OPDEFS
    from torch._library.custom_ops import CustomOpDef as CustomOpDef
    from torch._library.simple_registry import singleton as _registry
    from torch._ops import HigherOrderOperator as HigherOrderOperator
    from torch._ops import OpOverload as OpOverload
    from torch._ops import OpOverloadPacket as OpOverloadPacket
    from torch.amp.autocast_mode import _enter_autocast, _exit_autocast

    # The node of a graph of Dynamo's that gives a value a hook; None where its graphs break there (before 2.13)
    register_hook_op = name_if_known("torch._higher_order_ops.register_hook.register_hook_op")

    # Nodes of a graph of Dynamo's that begin and end a block of ``torch.autocast``
    enter_autocast, exit_autocast = _enter_autocast, _exit_autocast

    AUTOGRAD, COMPOSITE = torch._C.DispatchKey.Autograd, torch._C.DispatchKey.CompositeImplicitAutograd
    """Keys of kernels in Python: in place of an operator's derivative, and of the operators that it consists of."""

    NAMESPACES = torch._C._nn, torch._C._special
    """Where ``torch.nn.functional`` and ``torch.special`` take their functions from."""

    # The one function that layers of ``nn.TransformerEncoder`` call where nothing is differentiated
    transformer_encoder_layer = torch._transformer_encoder_layer_fwd

    # The forward that all layers of batch normalization share
    batch_norm_forward = torch.nn.modules.batchnorm._BatchNorm.forward

    # Lists of tensors changed at once
    foreach_copy, foreach_add = torch._foreach_copy_, torch._foreach_add_

    # Conditions in programs of users
    check = torch._check
    assert_true, assert_async = torch._assert, torch._assert_async

    # All operators' names, such as ``aten::add.Tensor``
    operator_names = torch._C._dispatch_get_all_op_names

    # Whether the operator of this name has a kernel for a key of this name
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key

    # The operator's schema and kernels as text
    registrations = torch._C._dispatch_dump


def custom_definition(name: str) -> CustomOpDef | None:
    """What ``torch.library.custom_op`` has made for an operator's qualified name; None for others."""
    return OPDEFS.get(name)


def fake_kernels(name: str) -> list[Any]:
    """The functions that tell the shapes of an operator's results."""
    return [kernel.func for kernel in _registry.find(name).fake_impl.kernels]


@contextmanager
def without_effect(name: str) -> Iterator[None]:
    """A block in which an operator is a call like others, without tokens that keep its order among effects."""
    effect = _registry.find(name).effect
    before = effect.effect
    effect.register(None)
    try:
        yield
    finally:
        effect.register(before)


def forget_kernels(operator: OpOverload) -> None:
    """Let the dispatcher look again which kernels of an operator's ``py_kernels`` it takes."""
    operator._dispatch_cache.clear()


def checkpoint_arguments(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Those arguments by name of ``torch.utils.checkpoint`` that are the region's own."""
    return TagActivationCheckpoint.divide_kwargs(kwargs)[1]

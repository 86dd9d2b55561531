"""Guards of TorchDynamo: what has to hold of a call for which it has a program."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch

from daceopt.torch_internals.release import private_names

with private_names():
    from torch._C._dynamo.guards import DictGuardManager as DictGuardManager
    from torch._C._dynamo.guards import TensorGuards
    from torch._dynamo.guards import GuardBuilder as GuardBuilder
    from torch._dynamo.guards import _get_closure_vars
    from torch._dynamo.source import AttrSource as AttrSource
    from torch._dynamo.source import GlobalStateSource as GlobalStateSource
    from torch._dynamo.source import LocalSource as LocalSource
    from torch._guards import ChainedSource as ChainedSource
    from torch._guards import Guard as Guard
    from torch._guards import GuardSource, TracingContext
    from torch._guards import Source as Source

    KEYS_OF_DICTIONARY: str = GuardBuilder.DICT_KEYS_MATCH.__name__
    """What a guard of the keys of a dictionary calls itself (``Guard.create_fn_name``)."""


def is_tracing() -> bool:
    """Whether Dynamo, or what it has called, traces in this thread."""
    return TracingContext.try_get() is not None


def is_of_global(source: Source) -> bool:
    """Whether a value is in a global variable."""
    return source.guard_source is GuardSource.GLOBAL


def names_in_guards() -> dict[str, Any]:
    """What the texts of sources name, besides the variables of the frame."""
    return dict(_get_closure_vars())


def state_guards(*tensors: torch.Tensor) -> Any:
    """What compares types, element types, sizes, strides and so on of tensors with what they are now, all in one call
    (``check(*tensors)``)."""
    return TensorGuards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None)


def without_nodes(root: Any, nodes: Collection[int]) -> Any:
    """The tree of guards ``root`` without those nodes, by ``id``, and what is below them."""
    return root.clone_manager(lambda node: id(node) not in nodes)

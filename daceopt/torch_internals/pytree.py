"""Nested lists, tuples and dictionaries, seen as trees of leaves, as PyTorch's compilers see them."""

from __future__ import annotations

from daceopt.torch_internals.release import private_names

with private_names():
    from torch.utils._pytree import SequenceKey as SequenceKey
    from torch.utils._pytree import TreeSpec as TreeSpec
    from torch.utils._pytree import keystr as keystr
    from torch.utils._pytree import tree_flatten as tree_flatten
    from torch.utils._pytree import tree_flatten_with_path as tree_flatten_with_path
    from torch.utils._pytree import tree_leaves as tree_leaves
    from torch.utils._pytree import tree_map as tree_map
    from torch.utils._pytree import tree_map_only as tree_map_only
    from torch.utils._pytree import tree_unflatten as tree_unflatten

"""The flat view of a call: which leaves are tensors, and a module that maps tensors to tensors for the exporter."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import nn

from daceopt.capture.replica import Replica
from daceopt.errors import CaptureError

_PYTHON = (bool, int, float, complex, str, bytes, type(None), enum.Enum, slice)
_TORCH = (torch.dtype, torch.device, torch.memory_format, torch.layout)


class FlatCall(nn.Module):
    """``forward(*tensors)`` calls ``root.forward`` with the tensors put back into the captured structure, and returns
    tensors only.

    ``ties`` are pairs of (flat index, axis) of equal sizes. Non-tensor leaves of the call are constants of the trace.
    After a trace, ``out_tree``, ``out_tensors`` (flat indices of the tensors returned) and ``out_constants`` (flat
    index -> Python value) describe the result.
    """

    def __init__(
        self, replica: Replica, leaves: Sequence[Any], in_tree: pytree.TreeSpec, ties: Sequence[Any] = ()
    ) -> None:
        super().__init__()
        self.train(replica.root.training)
        self.root = replica.root
        self.call = _Call(list(leaves), in_tree)
        self.replica = replica
        self.ties = tuple(ties)

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Flat tensors in, flat tensors out."""
        by_index = dict(zip(self.call.in_tensors, tensors, strict=True))
        for (a, axis), (b, other) in self.ties:
            torch._check(by_index[a].shape[axis] == by_index[b].shape[other])
        args, kwargs = self.call.arguments(tensors)
        forward = self.root.forward  # not __call__: the hooks of the outermost module run outside the compiled program
        with self.replica.unchanged():
            result = forward(*args, **kwargs)
        return self.call.record(result)


class _Call:
    """Structure of one call; a plain object, so that the exporter does not see its writes as module state."""

    def __init__(self, leaves: list[Any], in_tree: pytree.TreeSpec) -> None:
        self.in_tree = in_tree
        self.in_tensors = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        self.in_constants = {i: _plain(leaf, f"input {i}") for i, leaf in enumerate(leaves) if i not in self.in_tensors}
        self.out_tree: pytree.TreeSpec | None = None
        self.out_tensors: list[int] = []
        self.out_constants: dict[int, Any] = {}

    def arguments(self, tensors: Sequence[torch.Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        leaves = dict(self.in_constants)
        leaves.update(zip(self.in_tensors, tensors, strict=True))
        return pytree.tree_unflatten([leaves[i] for i in range(len(leaves))], self.in_tree)

    def record(self, result: Any) -> tuple[torch.Tensor, ...]:
        _register_dataclasses(result)
        leaves, self.out_tree = pytree.tree_flatten(result)
        self.out_tensors = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        tensors = set(self.out_tensors)
        self.out_constants = {i: _plain(x, f"output {i}") for i, x in enumerate(leaves) if i not in tensors}
        return tuple(leaves[i] for i in self.out_tensors)


def _plain(leaf: Any, where: str) -> Any:
    if isinstance(leaf, (*_PYTHON, *_TORCH)):
        return leaf
    if isinstance(leaf, torch.SymInt | torch.SymFloat | torch.SymBool):
        raise CaptureError(
            f"{where} is a number that depends on a dynamic size; daceopt compiles tensors and constants"
        )
    raise CaptureError(
        f"{where} is a {type(leaf).__module__}.{type(leaf).__qualname__}; expected tensors and plain Python values in "
        "tuples, lists, dicts or dataclasses (register other containers with torch.utils._pytree)"
    )


def _register_dataclasses(value: Any) -> None:
    """Make the dataclasses in ``value`` known to pytree, so that their tensors are seen and the result can be
    rebuilt.
    """
    for leaf in pytree.tree_leaves(value):
        if not dataclasses.is_dataclass(leaf) or isinstance(leaf, type):
            continue
        try:
            torch.export.register_dataclass(type(leaf))
        except (ValueError, AssertionError) as error:
            raise CaptureError(f"output dataclass {type(leaf).__qualname__} cannot be flattened: {error}") from error
        _register_dataclasses(leaf)

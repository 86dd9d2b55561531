"""Gradients that ``torch.vmap`` has batched, also by ``torch.autograd.grad(..., is_grads_batched=True)``.

A program is no operator that knows how to take a batch of gradients: it runs once for each of them. PyTorch has two
kinds of batched tensors, those of functorch and older ones, which autograd's own functions still make.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, Protocol

import torch

from daceopt.torch_internals import functorch
from daceopt.torch_internals.functorch import outside_of_transform

Gradients = Sequence["torch.Tensor | None"]


def is_batched(grads: Gradients) -> bool:
    """Whether one of them stands for a batch, as it may inside of ``vmap`` alone."""
    if functorch.innermost_transform() is None and not functorch.is_in_old_vmap():
        return False
    return any(g is not None and (functorch.is_batched(g) or functorch.is_old_batched(g)) for g in grads)


def each(backward: Callable[[Gradients], Gradients], grads: Gradients) -> list[torch.Tensor | None]:
    """What ``backward`` gives for every gradient of the innermost batch, as a batch."""
    tensors = [g for g in grads if g is not None]
    modern = [functorch.level_of(g) for g in tensors if functorch.is_batched(g)]
    batch: _Batch = _Modern(max(modern)) if modern else _Old(max(level for g in tensors for level in _old_levels(g)))
    parts = [None if g is None else batch.parts(g) for g in grads]
    size = next(len(p) for p in parts if isinstance(p, tuple))
    with batch.outside():
        gradients = [backward([p[k] if isinstance(p, tuple) else p for p in parts]) for k in range(size)]
        stacked = [None if column[0] is None else torch.stack(column) for column in zip(*gradients)]
    return [None if t is None else batch.join(t) for t in stacked]


class _Batch(Protocol):
    def parts(self, grad: torch.Tensor) -> Any:
        """The gradients of the batch as a tuple, or the tensor itself, which is the same for all of them."""

    def join(self, stacked: torch.Tensor) -> torch.Tensor:
        """The batch of what lies along the first axis."""

    def outside(self) -> Any:
        """Where PyTorch knows nothing of the batch."""


class _Modern:
    def __init__(self, level: int) -> None:
        self.level = level

    def parts(self, grad: torch.Tensor) -> Any:
        if not functorch.is_batched(grad) or functorch.level_of(grad) != self.level:
            return grad
        return functorch.unwrapped(grad).unbind(functorch.batch_axis(grad))

    def join(self, stacked: torch.Tensor) -> torch.Tensor:
        return functorch.add_batch(stacked, 0, self.level)

    def outside(self) -> Any:
        return outside_of_transform()


class _Old:
    def __init__(self, level: int) -> None:
        self.level = level

    def parts(self, grad: torch.Tensor) -> Any:
        if self.level not in _old_levels(grad):
            return grad
        return functorch.remove_old_batch(grad, self.level, 1, 0).unbind()

    def join(self, stacked: torch.Tensor) -> torch.Tensor:
        return functorch.add_old_batch(stacked, 0, self.level)

    def outside(self) -> Any:
        return nullcontext()


def _old_levels(tensor: torch.Tensor) -> list[int]:
    """The levels at which it is a batch: at others, the batch that is taken off has the size that one says."""
    if not functorch.is_old_batched(tensor):
        return []
    deepest = functorch.old_vmap_depth()
    sizes = {k: [functorch.remove_old_batch(tensor, k, n, 0).shape[0] for n in (2, 3)] for k in range(1, deepest + 1)}
    return [level for level, (a, b) in sizes.items() if a == b]

"""Gradients that ``torch.vmap`` has batched, also by ``torch.autograd.grad(..., is_grads_batched=True)``.

A program is no operator that knows how to take a batch of gradients: it runs once for each of them. PyTorch has two
kinds of batched tensors, those of functorch and older ones, which autograd's own functions still make.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, Protocol

import torch
from torch._C import _functorch
from torch._functorch.pyfunctorch import temporarily_pop_interpreter_stack

_OLD, _OLD_MODE = map(torch._C._dispatch_key_parse, ("Batched", "VmapMode"))

Gradients = Sequence["torch.Tensor | None"]


def is_batched(grads: Gradients) -> bool:
    """Whether one of them stands for a batch, as it may inside of ``vmap`` alone."""
    if _functorch.peek_interpreter_stack() is None and not torch._C._dispatch_tls_is_dispatch_key_included(_OLD_MODE):
        return False
    return any(g is not None and (_functorch.is_batchedtensor(g) or _is_old(g)) for g in grads)


def each(backward: Callable[[Gradients], Gradients], grads: Gradients) -> list[torch.Tensor | None]:
    """What ``backward`` gives for every gradient of the innermost batch, as a batch."""
    tensors = [g for g in grads if g is not None]
    modern = [_functorch.maybe_get_level(g) for g in tensors if _functorch.is_batchedtensor(g)]
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
        if not _functorch.is_batchedtensor(grad) or _functorch.maybe_get_level(grad) != self.level:
            return grad
        return _functorch.get_unwrapped(grad).unbind(_functorch.maybe_get_bdim(grad))

    def join(self, stacked: torch.Tensor) -> torch.Tensor:
        return _functorch._add_batch_dim(stacked, 0, self.level)

    def outside(self) -> Any:
        return temporarily_pop_interpreter_stack()


class _Old:
    def __init__(self, level: int) -> None:
        self.level = level

    def parts(self, grad: torch.Tensor) -> Any:
        if self.level not in _old_levels(grad):
            return grad
        return torch._remove_batch_dim(grad, self.level, 1, 0).unbind()

    def join(self, stacked: torch.Tensor) -> torch.Tensor:
        return torch._add_batch_dim(stacked, 0, self.level)

    def outside(self) -> Any:
        return nullcontext()


def _is_old(tensor: torch.Tensor) -> bool:
    return torch._C._dispatch_keys(tensor).has(_OLD)


def _old_levels(tensor: torch.Tensor) -> list[int]:
    """The levels at which it is a batch: at others, the batch that is taken off has the size that one says."""
    if not _is_old(tensor):
        return []
    deepest = torch._C._vmapmode_increment_nesting() - 1
    torch._C._vmapmode_decrement_nesting()
    sizes = {k: [torch._remove_batch_dim(tensor, k, n, 0).shape[0] for n in (2, 3)] for k in range(1, deepest + 1)}
    return [level for level, (a, b) in sizes.items() if a == b]

"""Writes under PyTorch's functionalization, where they become new values: in memory as before, with the gradient that
autograd knows of."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import reduce
from typing import Any

import torch

from daceopt.capture.torch import custom_gradient
from daceopt.capture.torch.functional_values import plain
from daceopt.capture.torch.strides import dense_order
from daceopt.errors import Unsupported
from daceopt.torch_internals.functional_tensors import FunctionalTensor, set_value, views_of
from daceopt.torch_internals.modes import TorchDispatchMode


class Before:
    """An operand as it was before a call that may write into it."""

    def __init__(self, operand: FunctionalTensor, whole: FunctionalTensor) -> None:
        """``whole``: from whose new value all views are made again."""
        self._operand, self._value = operand, plain(operand)
        self._whole, self._before, self._strides = whole, plain(whole), whole.stride()
        self._kept = self._before

    def is_changed(self) -> bool:
        """Whether it has a new value."""
        return plain(self._operand) is not self._value

    def keep_strides(self) -> None:
        """What is changed in place is in memory as before: the operators that give a new value do not know that."""
        value, order = plain(self._whole), dense_order(self._before)
        is_same = value.stride() == self._before.stride() or self._whole.stride() != self._strides  # as by ``t_``
        if order is not None and not is_same:
            set_value(self._whole, value.permute(order).contiguous().permute([*map(order.index, range(len(order)))]))

    def keep_gradient(self) -> None:
        """Autograd does not see the write: the gradient of what was there is that of the new value."""
        value = plain(self._whole)
        if value is not self._kept:
            before = FunctionalTensor.to_functional(self._kept)
            self._kept = plain(custom_gradient.as_gradient_of(self._whole, before))
            set_value(self._whole, self._kept)


class _KeepingGradients(TorchDispatchMode):
    """Each operator that writes is followed by that: a call may read what it has written, as ``embedding`` does."""

    def __init__(self, operands: Sequence[Before]) -> None:
        super().__init__()
        self._operands = operands

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> object:
        result = func(*args, **(kwargs or {}))
        if func._schema.is_mutable:
            for operand in self._operands:
                operand.keep_gradient()
        return result


def keeping_gradients(operands: Sequence[Before]) -> AbstractContextManager[Any]:
    """Around a call whose writes into these operands autograd does not record."""
    return _KeepingGradients(operands) if operands else nullcontext()


def windows(tensor: FunctionalTensor, dimension: int, size: int, step: int) -> torch.Tensor:
    """``unfold`` in views through which functionalization writes right: its inverse of ``unfold`` itself loses what is
    in no window, and adds what is in several."""
    if tensor.dim() == 0:
        return tensor.unfold(dimension, size, step)
    axis = dimension % tensor.dim()
    count = (tensor.shape[axis] - size) // step + 1
    step = size if count == 1 and step > tensor.shape[axis] else step
    if step < size or count * step > tensor.shape[axis]:
        return tensor.unfold(dimension, size, step)
    apart = tensor.narrow(axis, 0, count * step).unflatten(axis, (count, step))
    return apart.narrow(axis + 1, 0, size).movedim(axis + 1, -1)


def fill_diagonal(tensor: torch.Tensor, value: object, wrap: bool = False) -> torch.Tensor:
    """``fill_diagonal_`` by a mask. PyTorch writes through ``as_strided``: see ``check_views``."""
    rows, columns = tensor.shape[:2]
    places = [_along(torch.arange(n, device=tensor.device), k, tensor.dim()) for k, n in enumerate(tensor.shape)]
    mask = reduce(torch.logical_and, [place == places[0] for place in places[1:]])
    if wrap and tensor.dim() == 2 and rows > columns + 1:
        if not tensor.is_contiguous():
            raise Unsupported("fill_diagonal_(wrap=True) of a tensor that is not contiguous")
        mask = (torch.arange(rows * columns, device=tensor.device) % (columns + 1) == 0).view(rows, columns)
    return tensor.masked_fill_(mask, torch.full((), value, dtype=tensor.dtype, device=tensor.device))


def _along(places: torch.Tensor, axis: int, rank: int) -> torch.Tensor:
    return places.view([-1 if k == axis else 1 for k in range(rank)])


def check_views(changed: FunctionalTensor, differentiated: bool) -> None:
    """Raises Unsupported for a view by ``unfold`` itself, and for one by ``as_strided`` whose elements share memory or
    are differentiated: PyTorch's derivative of ``as_strided_scatter`` keeps what is written over. And for elements that
    stand in one place, as by ``expand``: eager PyTorch may refuse to write them."""
    if any(stride == 0 and size != 1 for size, stride in zip(changed.shape, changed.stride())):
        raise Unsupported("a write into elements that share memory (by expand)")
    views = {type(view).__name__ for view in views_of(changed)}
    if "unfold_ViewMeta" in views:
        raise Unsupported("a write into windows (by unfold) that overlap, or end apart from their source")
    if "as_strided_ViewMeta" in views and (differentiated or _may_overlap(changed)):
        raise Unsupported("a write through as_strided, of elements that share memory or are differentiated")


def _may_overlap(tensor: torch.Tensor) -> bool:
    reach = 0
    for stride, size in sorted((s, n) for s, n in zip(tensor.stride(), tensor.shape) if n != 1):
        if stride <= reach:
            return True
        reach += stride * (size - 1)
    return False

"""Arguments that share memory: a program that changes one of them would leave the others as they were."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch


def check(written: Sequence[int], is_state: Sequence[bool]) -> Callable[[Sequence[Any]], bool] | None:
    """Whether, in a call, an argument of ``written`` shares elements with another; None where none is written.

    Parameters and buffers are not compared with each other: the same one twice is one argument.
    """
    changed = set(written)
    if not any(k != j and not (is_state[k] and is_state[j]) for j in changed for k in range(len(is_state))):
        return None

    def overlapping(arguments: Sequence[Any]) -> bool:
        tensors = ((k, arguments[k]) for k in range(len(is_state)))
        spans = sorted((*_span(x), k) for k, x in tensors if isinstance(x, torch.Tensor))
        open_: list[tuple[int, int]] = []  # (end, argument) of what may reach the next one, which begins no earlier
        for first, last, k in spans:
            open_ = [(end, j) for end, j in open_ if end > first]
            if any((j in changed or k in changed) and not (is_state[j] and is_state[k]) for _, j in open_):
                return True
            if last > first:
                open_.append((last, k))
        return False

    return overlapping


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """From its first byte to the one after its last."""
    start = tensor.data_ptr()
    if not tensor.numel():
        return start, start
    if tensor.is_contiguous():
        return start, start + tensor.nbytes
    extent = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
    return start, start + (extent + 1) * tensor.element_size()

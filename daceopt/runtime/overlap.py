"""Arguments that share memory: a program that changes one of them would leave the others as they were."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch


def check(written: Sequence[int], is_state: Sequence[bool]) -> Callable[[Sequence[Any]], bool] | None:
    """Whether, in a call, an argument of ``written`` shares elements with another; None where none is written.

    Parameters and buffers are not compared with each other: the same one twice is one argument.
    """
    pairs = [(k, [j for j, s in enumerate(is_state) if j != k and not (s and is_state[k])]) for k in written]
    pairs = [(k, others) for k, others in pairs if others]
    if not pairs:
        return None

    def overlapping(arguments: Sequence[Any]) -> bool:
        return any(_shares(arguments[k], [arguments[j] for j in others]) for k, others in pairs)

    return overlapping


def _shares(written: torch.Tensor, others: Sequence[Any]) -> bool:
    first, last = _span(written)
    return any(isinstance(x, torch.Tensor) and _meets(_span(x), first, last) for x in others)


def _meets(span: tuple[int, int], first: int, last: int) -> bool:
    return span[0] < last and first < span[1]


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """From its first byte to the one after its last."""
    start = tensor.data_ptr()
    if not tensor.numel():
        return start, start
    extent = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
    return start, start + (extent + 1) * tensor.element_size()

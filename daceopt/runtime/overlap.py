"""Arguments that share memory: a program that changes one of them would leave the others as they were."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

Check = Callable[[Sequence[Any]], bool]


def check(written: Sequence[int], is_state: Sequence[bool]) -> Check | None:
    """Whether, in a call, an argument of ``written`` shares elements with another; None where none is written, or
    nothing else is there.

    Parameters and buffers are many and stay where they are: they are compared with each other when one has moved.
    """
    changed = set(written)
    if not changed or len(is_state) < 2:
        return None
    of_state = _check_of_state(changed, [k for k, state in enumerate(is_state) if state])
    if not any(k != j and not (is_state[k] and is_state[j]) for j in changed for k in range(len(is_state))):
        return of_state

    def overlapping(arguments: Sequence[object]) -> bool:
        return of_state(arguments) or _overlap(arguments, range(len(is_state)), changed, is_state)

    return overlapping


def _check_of_state(changed: set[int], state: Sequence[int]) -> Check:
    if changed.isdisjoint(state):
        return lambda arguments: False
    checked: list[Any] = []
    verdict = False
    distinct = [False] * (max(state) + 1)

    def overlapping(arguments: Sequence[Any]) -> bool:
        nonlocal checked, verdict
        places = [arguments[k].data_ptr() for k in state]
        if places != checked:
            checked, verdict = places, _overlap(arguments, state, changed, distinct)
        return verdict

    return overlapping


def _overlap(arguments: Sequence[object], of: Iterable[int], changed: set[int], is_state: Sequence[bool]) -> bool:
    """Does one of ``changed`` share elements with another argument, unless both are state?"""
    spans = sorted((*_span(arguments[k]), k) for k in of if isinstance(arguments[k], torch.Tensor))
    open_: list[tuple[int, int]] = []  # (end, argument) of what may reach the next one, which begins no earlier
    for first, last, k in spans:
        open_ = [(end, j) for end, j in open_ if end > first]
        if any((j in changed or k in changed) and not (is_state[j] and is_state[k]) for _, j in open_):
            return True
        if last > first:
            open_.append((last, k))
    return False


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """From its first byte to the one after its last."""
    start = tensor.data_ptr()
    if not tensor.numel():
        return start, start
    if tensor.is_contiguous():
        return start, start + tensor.nbytes
    extent = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
    return start, start + (extent + 1) * tensor.element_size()

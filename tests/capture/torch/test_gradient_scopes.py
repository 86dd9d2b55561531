"""Regions without gradients inside of a graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.capture.torch.checking import check, make_backend
from tests.capture.torch.interpreted import compile_interpreted


def test_what_is_written_later_does_not_connect_what_a_region_read() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            kept = x.square() * 3
        kept.sub_(y)
        return kept

    check(fn, torch.randn(3), torch.randn(3))


def test_what_is_written_after_a_value_was_read_does_not_connect_it() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        padded = x + 1
        result = padded.prod()
        padded.add_(y)
        return result

    assert _gradients_are_absent(fn) == [False, True]


def test_what_is_written_through_a_view_connects_its_base() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        base = x + 1
        base.view(3, 1)[1:].view(2).add_(y[1:])
        return base * 0 + base

    assert _gradients_are_absent(fn) == [False, False]


def _gradients_are_absent(fn: Callable[..., Any]) -> list[bool]:
    torch._dynamo.reset()
    compiled = torch._dynamo.optimize(make_backend(compile_interpreted), nopython=True)(fn)
    given = [torch.randn(3, requires_grad=True) for _ in range(2)]
    compiled(*given).sum().backward()
    return [x.grad is None for x in given]

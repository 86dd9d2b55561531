"""Tensors made from numbers; conversions and copies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.capture.torch.checking import check

TYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int8, torch.int64, torch.uint8, torch.bool]


@pytest.mark.parametrize("dtype", TYPES)
def test_filled(dtype: torch.dtype) -> None:
    def fn(x: torch.Tensor) -> Any:
        like = [torch.zeros_like(x), torch.ones_like(x), torch.full_like(x, 3), x.new_zeros(2), x.new_ones(3)]
        like += [x.new_full((2, 1), 5), torch.empty_like(x).fill_(2), torch.fill(x, 1)]
        made = [torch.full((2, 3), 1, dtype=dtype), torch.zeros(2, dtype=dtype), torch.ones((), dtype=dtype)]
        return like + made + [torch.eye(3, 4, dtype=dtype) if dtype != torch.uint8 else x, torch.full((0, 2), True)]

    check(fn, torch.ones(2, 3).to(dtype))


@pytest.mark.parametrize("value", [2.5, 1, True, float("inf"), float("nan"), -0.1])
def test_values(value: Any) -> None:
    check(lambda x: (torch.full((2,), value), torch.full_like(x, value), torch.scalar_tensor(value) + x), torch.ones(2))


ARANGES: list[Callable[[], torch.Tensor]] = [
    lambda: torch.arange(5),
    lambda: torch.arange(2, 9, 3),
    lambda: torch.arange(5, 0, -2),
    lambda: torch.arange(0.0, 1.0, 0.1),
    lambda: torch.arange(0, 1, 0.1, dtype=torch.float64),
    lambda: torch.arange(4, dtype=torch.bfloat16),
    lambda: torch.arange(3, 3),
    lambda: torch.arange(100_000, dtype=torch.int32),
    lambda: torch.arange(1.0, 100_000.0),
    lambda: torch.linspace(0, 1, 7),
    lambda: torch.linspace(3, -2, 5, dtype=torch.float64),
    lambda: torch.linspace(0, 1, 1),
    lambda: torch.linspace(0, 10**9, 7, dtype=torch.int64),  # float32 would be off by 42
    lambda: torch.linspace(-(2**60), 2**60 + 1, 9, dtype=torch.int64),
    lambda: torch.linspace(255, 0, 100, dtype=torch.uint8),
    lambda: torch.linspace(-3, 7, 100, dtype=torch.bfloat16),
    lambda: torch.linspace(0, 7, 100, dtype=torch.float16),
    lambda: torch.linspace(torch.tensor(4), torch.tensor(-(10**9)), 50, dtype=torch.int64),
    lambda: torch.linspace(torch.tensor(0.5), 7, 3),
    lambda: torch.linspace(2, 1, 0),
    lambda: torch.logspace(0, 2, 5),
    lambda: torch.logspace(0, 30, 31, base=2, dtype=torch.int64),
    lambda: torch.logspace(-1, torch.tensor(3.0), 5, dtype=torch.float64),
    lambda: torch.tril_indices(3, 4),
    lambda: torch.triu_indices(4, 3, 1),
    lambda: torch.eye(4),
    lambda: torch.tensor([1.5, 2.5]) + 1,
]


@pytest.mark.parametrize("fn", ARANGES)
def test_ranges(fn: Callable[[], torch.Tensor]) -> None:
    check(lambda x: (fn(), x), torch.ones(1))


def test_ranges_that_are_left_to_aten() -> None:
    """Complex ones, long ones, and those between numbers that are known when running."""
    check(lambda x: (torch.linspace(0, 1 + 2j, 7), x + 1), torch.ones(1), native=False)
    check(lambda x: (torch.linspace(0, 10**9, 100_000, dtype=torch.int64), x + 1), torch.ones(1), native=False)

    def fn(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> Any:
        n = x.shape[0]
        return torch.linspace(a, b, 9, dtype=torch.int64), torch.linspace(0, 1, n) + x, torch.logspace(n, b, 5)

    check(fn, torch.rand(3), torch.tensor(-(10**9)), torch.tensor(3), dynamic=True, native=False)


def test_dynamic_sizes() -> None:
    def fn(x: torch.Tensor) -> Any:
        n, m = x.shape
        return torch.arange(n), torch.arange(1, m + 1, dtype=x.dtype) * x, x.new_zeros(m, n), torch.full((n,), m), m * x

    check(fn, torch.rand(3, 4), dynamic=True)


@pytest.mark.parametrize("source", TYPES)
def test_conversions(source: torch.dtype) -> None:
    check(lambda x: [x.to(t) for t in TYPES], torch.tensor([0.0, 1.0, 2.0, 3.5, 100.25]).to(source))


def test_conversions_through_integers_stop_gradients() -> None:
    check(lambda x: x.long() * x + x.double() * 2 + x.to(torch.bfloat16), torch.tensor([1.5, -2.25, 0.5]))


def test_copies() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> Any:
        twin = x.clone()
        twin[0] = 5
        return twin, x.contiguous() + 1, x.T.contiguous(), torch.empty_like(x).copy_(y), x.t().clone(), +x

    check(fn, torch.rand(3, 3), torch.rand(3), native=False)


@pytest.mark.parametrize(("source", "target"), [(torch.float64, torch.int64), (torch.int64, torch.float64)])
def test_the_same_bits(source: torch.dtype, target: torch.dtype) -> None:
    check(lambda x: x.view(target) * 1, torch.tensor([1, 2, 3]).to(source), grad=False)

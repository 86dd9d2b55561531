"""Comparisons, logic and bits in all types; numbers are rounded to the type in which they are compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo

from tests.capture.torch.checking import check, make_backend
from tests.capture.torch.interpreted import compile_interpreted
from tests.capture.torch.test_pointwise import ANY, OTHER, values

Fn = Callable[..., Any]
COMPARISONS = [torch.eq, torch.ne, torch.lt, torch.le, torch.gt, torch.ge]
QUESTIONS = [torch.isnan, torch.isinf, torch.isfinite, torch.isposinf, torch.isneginf, torch.signbit, torch.logical_not]
LOGIC = [torch.logical_and, torch.logical_or, torch.logical_xor]


def _as_eager(fn: Fn, *args: torch.Tensor) -> None:
    """Where 0.1 is another number in float64."""
    torch._dynamo.reset()
    compiled = torch._dynamo.optimize(make_backend(compile_interpreted), nopython=True)(fn)
    assert all(map(torch.equal, compiled(*args), fn(*args)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_floats(dtype: torch.dtype) -> None:
    x, y = values(ANY, dtype), values(OTHER, dtype)
    check(lambda x, y: [f(x, y) for f in (*COMPARISONS, *LOGIC)], x, y)
    check(lambda x: [f(x) for f in QUESTIONS], x)
    _as_eager(lambda x: [f(x, 0.1) for f in COMPARISONS] + [f(x, 3) for f in COMPARISONS], x)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int64, torch.uint8, torch.bool])
def test_integers(dtype: torch.dtype) -> None:
    x, y = torch.tensor([0, 1, 2, 3, 100, 5]).to(dtype), torch.tensor([1, 1, 0, 3, 7, 6]).to(dtype)
    check(lambda x, y: [f(x, y) for f in (*COMPARISONS, *LOGIC)], x, y)
    check(lambda x: [f(x) for f in QUESTIONS], x)
    check(lambda x: [f(x, 2.5) for f in COMPARISONS] + [f(x, 3) for f in COMPARISONS], x)


def test_types_meet() -> None:
    """A tensor without axes gives way to one that has some."""
    third = torch.tensor(0.1, dtype=torch.float64)
    _as_eager(lambda x, y, z: (x == y, x < y, x >= z, z != x, y > z), values([0.1, 0.2]), third, torch.tensor([1, 0]))


@pytest.mark.parametrize("shapes", [((), (3,)), ((0,), (1,)), ((2, 1), (3,))])
def test_shapes(shapes: Any) -> None:
    x, y = (torch.ones(s) for s in shapes)
    check(lambda x, y: (x < y, x == y, torch.logical_and(x, y), torch.isnan(x)), x, y)


BITS = [torch.bitwise_and, torch.bitwise_or, torch.bitwise_xor]
SHIFTS = [torch.bitwise_left_shift, torch.bitwise_right_shift, lambda x, y: x << y, lambda x, y: x >> y]


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8])
def test_bits(dtype: torch.dtype) -> None:
    x, y = torch.tensor([0, 1, 2, 3, 100, 5]).to(dtype), torch.tensor([1, 3, 0, 7, 6, 2]).to(dtype)
    x = -x if dtype.is_signed else x
    check(lambda x, y: [f(x, y) for f in (*BITS, *SHIFTS)] + [torch.bitwise_not(x)], x, y)
    check(lambda x: [f(x, 3) for f in (*BITS, *SHIFTS)] + [5 & x, 5 | x, 5 ^ x, ~x], x)


def test_bits_of_bool() -> None:
    x, y = torch.tensor([True, True, False, False]), torch.tensor([True, False, True, False])
    check(lambda x, y: [f(x, y) for f in BITS] + [torch.bitwise_not(x), x & True], x, y)

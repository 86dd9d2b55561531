"""Softmax and its logarithm: rows of infinities and NaN, other types, no axes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.capture.torch.checking import check

INF, NAN = float("inf"), float("nan")
X = torch.linspace(-2, 3, 60).reshape(3, 4, 5).mul(9).sin() * 4
ODD = torch.tensor([[1.0, -INF, 3.0], [-INF, -INF, -INF], [INF, 2.0, 1.0], [NAN, 0.0, 1.0], [9e30, 1.0, -9e30]])


@pytest.mark.share(2)
@pytest.mark.parametrize("fn", [torch.softmax, torch.log_softmax])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_dtypes(fn: Callable[..., Any], dtype: torch.dtype) -> None:
    check(lambda x: fn(x, -1), X.to(dtype))
    check(lambda x: fn(x, 0), X.to(dtype), dynamic=True)


@pytest.mark.parametrize("fn", [torch.softmax, torch.log_softmax])
@pytest.mark.parametrize("x", [ODD, torch.tensor(2.0), torch.empty(2, 0)], ids=["odd", "scalar", "empty"])
def test_values(fn: Callable[..., Any], x: torch.Tensor) -> None:
    check(lambda x: fn(x, -1), x)


def test_another_type() -> None:
    check(lambda x: torch.softmax(x, 1, dtype=torch.float32), X.bfloat16())
    check(lambda x: torch.log_softmax(x, 1, dtype=torch.float64), X)

"""Running sums, products and extrema, and their gradients at zeros, ties and NaN."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.capture.torch.checking import check

NAN, INF = float("nan"), float("inf")
X = torch.linspace(-2, 3, 60).reshape(3, 4, 5).sin()
ZEROS = torch.tensor([[2.0, 0.0, 3.0, 0.0, -1.0], [0.0, 1.0, 2.0, 3.0, 4.0], [1.0, -2.0, 0.5, 2.0, 0.0]])
ODD = torch.tensor([[1.0, 1.0, -INF, INF, 1.0], [0.0, NAN, 2.0, NAN, 4.0]])

SCANS: dict[str, Callable[..., Any]] = {
    "cumsum": lambda x: x.cumsum(-1),
    "cumprod": lambda x: x.cumprod(0),
    "cumprod_last": lambda x: x.cumprod(-1),
    "cummax": lambda x: x.cummax(-1),
    "cummin": lambda x: x.cummin(0),
}


@pytest.mark.share(2)
@pytest.mark.parametrize("name", SCANS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_dtypes(name: str, dtype: torch.dtype) -> None:
    check(SCANS[name], X.to(dtype))


@pytest.mark.share(2)
@pytest.mark.parametrize("name", SCANS)
@pytest.mark.parametrize("x", [ZEROS, ODD, torch.tensor(3.0)], ids=["zeros", "odd", "scalar"])
def test_values(name: str, x: torch.Tensor) -> None:
    """Where a factor is infinite, PyTorch's gradient of a product divides infinities; ours multiplies the others."""
    check(SCANS[name], x, grad=not (name.startswith("cumprod") and x is ODD))


@pytest.mark.parametrize("name", SCANS)
def test_no_elements(name: str) -> None:
    check(SCANS[name], torch.zeros(0, 2), grad=False)


@pytest.mark.share(2)
@pytest.mark.parametrize("name", SCANS)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64, torch.bool], ids=str)
def test_integers(name: str, dtype: torch.dtype) -> None:
    check(SCANS[name], (torch.arange(24).reshape(4, 6) * 7 % 5).to(dtype))


@pytest.mark.parametrize("name", SCANS)
def test_open_sizes(name: str) -> None:
    check(SCANS[name], X, dynamic=True)


def test_another_type() -> None:
    check(lambda x: x.cumsum(0, dtype=torch.float64), X)
    check(lambda x: x.cumprod(0, dtype=torch.int8), torch.full((9,), 3))


def test_logarithms_of_running_sums_are_left_to_aten() -> None:
    check(lambda x: x.logcumsumexp(1), X, native=False)

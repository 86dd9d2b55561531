"""Reductions, their places and their gradients: ties, NaN, infinities, element types, open and empty axes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.capture.torch.checking import check

INF, NAN = float("inf"), float("nan")
TIES = torch.tensor([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0], [-1.0, -0.0, 0.0]])
ODD = torch.tensor([[1.0, NAN, 3.0], [INF, 2.0, INF], [-INF, -INF, -INF], [NAN, NAN, -1.0]])
X = torch.linspace(-2, 3, 60).reshape(3, 4, 5).sin()

FLOATING: dict[str, Callable[..., Any]] = {
    "sum": lambda x: x.sum(),
    "sum_axes": lambda x: x.sum((0, -1), keepdim=True),
    "sum_wide": lambda x: x.sum(1, dtype=torch.float64),
    "mean": lambda x: x.mean(),
    "mean_axis": lambda x: x.mean(-1),
    "prod": lambda x: x.prod(),
    "prod_axis": lambda x: x.prod(0, keepdim=True),
    "amax": lambda x: x.amax((0, 1)),
    "amin": lambda x: x.amin(),
    "max": lambda x: x.max(),
    "min": lambda x: x.min(),
    "max_axis": lambda x: x.max(1),
    "min_axis": lambda x: x.min(0, keepdim=True),
    "argmax": lambda x: x.argmax(),
    "argmin": lambda x: x.argmin(-1, keepdim=True),
    "aminmax": lambda x: torch.aminmax(x, dim=1),
    "any": lambda x: x.any(1),
    "all": lambda x: x.all((0, 1), keepdim=True),
    "nansum": lambda x: x.nansum(1),
    "nanmean": lambda x: x.nanmean(),
    "logsumexp": lambda x: x.logsumexp((0, 1)),
    "count_nonzero": lambda x: x.count_nonzero(1),
}


@pytest.mark.share(3)
@pytest.mark.parametrize("name", FLOATING)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_dtypes(name: str, dtype: torch.dtype) -> None:
    check(FLOATING[name], X.to(dtype))


@pytest.mark.share(2)
@pytest.mark.parametrize("name", FLOATING)
@pytest.mark.parametrize("x", [TIES, ODD, TIES * 0], ids=["ties", "odd", "zeros"])
def test_values(name: str, x: torch.Tensor) -> None:
    check(FLOATING[name], x)


@pytest.mark.share(2)
@pytest.mark.parametrize("name", FLOATING)
def test_open_sizes(name: str) -> None:
    check(FLOATING[name], X, dynamic=True)


@pytest.mark.parametrize("name", ["sum", "mean", "prod", "max", "argmax", "argmin", "any", "nansum"])
def test_no_axes(name: str) -> None:
    check({**FLOATING, "argmin": torch.argmin, "any": torch.any, "nansum": torch.nansum}[name], torch.tensor(-1.5))


@pytest.mark.parametrize(
    "fn",
    [
        torch.sum,
        torch.mean,
        torch.prod,
        torch.any,
        torch.all,
        torch.nansum,
        lambda x: x.sum(1),
        lambda x: x.mean(1),
        lambda x: x.amax(0),
        lambda x: x.argmax(0),
        lambda x: x.max(0),
    ],
)
def test_no_elements(fn: Callable[..., Any]) -> None:
    check(fn, torch.empty(3, 0))


INTEGRAL = ["sum", "sum_axes", "prod", "amax", "max_axis", "min_axis", "any", "all", "count_nonzero"]


@pytest.mark.share(3)
@pytest.mark.parametrize("name", INTEGRAL)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool], ids=str)
def test_integers(name: str, dtype: torch.dtype) -> None:
    x = torch.arange(60).reshape(3, 4, 5) * 7 % 5
    check(FLOATING[name], x.to(dtype))


def test_a_product_in_bool_is_left_to_aten() -> None:
    backend = check(lambda x: x.prod(0, dtype=torch.bool), torch.arange(3), native=False)
    assert "prod.dim_int" in backend.graphs[0].pair.source.graphs.imported.hosted

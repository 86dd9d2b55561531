"""Variances, deviations and norms, at the orders and corrections where their formulas change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.linalg import vector_norm

from tests.capture.torch.checking import check

INF = float("inf")
X = torch.linspace(-2, 3, 60).reshape(3, 4, 5).sin()
WITH_ZEROS = torch.tensor([[3.0, -4.0, 0.0], [0.0, 0.0, 0.0], [1.0, 1.0, -1.0]])

SPREADS: dict[str, Callable[..., Any]] = {
    "var": torch.var,
    "var_axes": lambda x: x.var((0, 2), keepdim=True),
    "var_biased": lambda x: x.var(1, correction=0),
    "var_fraction": lambda x: x.var(1, correction=0.5),
    "std": lambda x: x.std(-1),
    "var_mean": lambda x: torch.var_mean(x, 1),
    "std_mean": lambda x: torch.std_mean(x, (0, 1), correction=2),
}


@pytest.mark.share(2)
@pytest.mark.parametrize("name", SPREADS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_spreads(name: str, dtype: torch.dtype) -> None:
    check(SPREADS[name], X.to(dtype))


@pytest.mark.parametrize("name", SPREADS)
def test_spreads_of_open_sizes(name: str) -> None:
    check(SPREADS[name], X, dynamic=True)


@pytest.mark.parametrize("fn", [lambda x: x.var(0), lambda x: x.std(0, correction=0), lambda x: x.std(0, correction=2)])
def test_too_few_elements_for_the_correction(fn: Callable[..., Any]) -> None:
    check(fn, torch.tensor([[1.0, 2.0, -3.0]]))


def test_a_spread_far_from_zero() -> None:
    check(lambda x: x.std(1), X[0] * 1e-2 + 1000)


@pytest.mark.share(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("size", [3e37, 1e19, 1e-23])
def test_deviations_whose_squares_leave_the_range(size: float, dtype: torch.dtype) -> None:
    x = (X * size).to(dtype)
    check(lambda x: x.std(1), x)
    check(lambda x: torch.std_mean(x, (0, 2), correction=0), x)


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("axis", [0, 1])
def test_means_beside_a_spread_of_infinite_elements(axis: int, dtype: torch.dtype) -> None:
    rows = [[INF, 1, 2], [1, 2, INF], [1, -INF, 2], [INF, 1, INF], [1, INF, -INF], [1, 2, 3]]
    x = torch.tensor(rows, dtype=dtype)
    check(lambda x: torch.var_mean(x, axis), x if axis else x.t().contiguous(), grad=False)


SUMS: dict[str, Callable[..., Any]] = {
    "var": lambda x: x.var(1),
    "var_mean": lambda x: torch.var_mean(x, 1),
    "var_mean_columns": lambda x: torch.var_mean(x, 0, correction=0),
    "running_mean": lambda x: _running_mean(x),
}


def _running_mean(x: torch.Tensor) -> torch.Tensor:
    found = x.new_zeros(x.shape[1])
    F.batch_norm(x, found, x.new_ones(x.shape[1]), training=True)
    return found


@pytest.mark.share(2)
@pytest.mark.parametrize("name", SUMS)
@pytest.mark.parametrize("dynamic", [False, True])
def test_sums_that_leave_the_range_of_their_elements(name: str, dynamic: bool) -> None:
    """Means of numbers near the largest one are means; equal numbers have no variance."""
    check(SUMS[name], torch.full((6, 40), 2.0**127), dynamic=dynamic, grad=False)


@pytest.mark.share(2)
@pytest.mark.parametrize("p", [0, 1, 2, 3, 0.5, -1, INF, -INF])
@pytest.mark.parametrize("x", [X[0], WITH_ZEROS], ids=["plain", "zeros"])
def test_norms(p: float, x: torch.Tensor) -> None:
    check(lambda x: vector_norm(x, p, dim=1), x, grad=p != 0)
    check(lambda x: vector_norm(x, p), x, grad=p != 0)


@pytest.mark.parametrize("p", [1, 2, 2.5, INF])
def test_distances(p: float) -> None:
    check(lambda x, y: torch.dist(x, y, p), X, X[1])


def test_norms_in_another_type_and_of_open_sizes() -> None:
    check(lambda x: vector_norm(x, 2, dim=1, dtype=torch.float64), X.bfloat16())
    check(lambda x: x.norm(dim=1), X, dynamic=True)


def test_what_is_made_of_norms() -> None:
    check(lambda x, y: torch.cosine_similarity(x, y, dim=-1), X, X.flip(0))
    check(lambda x: torch.renorm(x, 2, 0, 0.7), X, native=False)  # in half precision ATen's has no derivative

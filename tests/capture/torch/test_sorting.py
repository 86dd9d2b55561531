"""Orders, selections by rank, medians and searches; NaN is the largest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.capture.torch.checking import check

NAN, INF = float("nan"), float("inf")
X = (torch.arange(60.0) * 37 % 61).reshape(3, 4, 5).sub(20)  # all different
ODD = torch.tensor([[1.0, NAN, -INF, INF, 2.0], [5.0, 3.0, 2.0, 0.0, 4.0], [NAN, 3.0, NAN, 7.0, NAN]])
INTEGERS = [torch.uint8, torch.int8, torch.int32, torch.int64]

ORDERS: dict[str, Callable[..., Any]] = {
    "sort": lambda x: x.sort(-1),
    "sort_down": lambda x: x.sort(0, descending=True),
    "sort_stable": lambda x: torch.sort(x, stable=True, dim=-1, descending=True),
    "argsort": lambda x: x.argsort(0),
    "msort": torch.msort,
    "topk": lambda x: x.topk(2, 0),
    "topk_smallest": lambda x: x.topk(3, -1, largest=False),
    "kthvalue": lambda x: x.kthvalue(2),
    "kthvalue_kept": lambda x: x.kthvalue(3, 0, keepdim=True),
    "median": torch.median,
    "median_axis": lambda x: x.median(-1),
    "nanmedian": torch.nanmedian,
    "nanmedian_axis": lambda x: x.nanmedian(0, keepdim=True),
    "quantile": lambda x: x.quantile(0.3, dim=-1),
    "nanquantile": lambda x: x.nanquantile(0.7, dim=0),
}
HALVES = [n for n in ORDERS if "quantile" not in n]


@pytest.mark.share(2)
@pytest.mark.parametrize("name", ORDERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_orders(name: str, dtype: torch.dtype) -> None:
    check(ORDERS[name], X.to(dtype))


@pytest.mark.share(2)
@pytest.mark.parametrize("name", HALVES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, *INTEGERS], ids=str)
def test_other_dtypes(name: str, dtype: torch.dtype) -> None:
    check(ORDERS[name], X.to(dtype))


@pytest.mark.parametrize("name", ["sort", "median_axis", "nanmedian_axis", "median", "nanmedian", "nanquantile"])
def test_not_a_number(name: str) -> None:
    check(ORDERS[name], ODD)


@pytest.mark.share(2)
@pytest.mark.parametrize("name", HALVES)
def test_open_sizes(name: str) -> None:
    check(ORDERS[name], X, dynamic=True)


def test_equal_elements_keep_their_order() -> None:
    x = torch.tensor([[2, 1, 2, 1], [0, 0, 0, 0]])
    check(lambda x: torch.sort(x, stable=True, descending=True), x)
    check(lambda x: torch.sort(x, stable=True), x.bool())


@pytest.mark.share(2)
@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("extent, k", [(7, 3), (40, 40), (200, 3), (200, 4), (130, 2), (33, 1)])
def test_of_equal_elements_those_of_aten_are_taken(extent: int, k: int, largest: bool) -> None:
    """And get the gradient."""
    x = torch.randint(0, 5, (6, extent), generator=torch.Generator().manual_seed(k)).float()
    x[0], x[1, ::3], x[2, 1:] = 1, NAN, -0.0
    check(lambda v: v.topk(k, largest=largest), x)
    check(lambda v: v.topk(k, largest=largest, sorted=False), x)
    check(lambda v: (v.kthvalue(k), v[2:].median(1), v.nanmedian(1)), x)
    check(lambda v: (v.sort(1, descending=largest), torch.sort(v, dim=1, descending=largest, stable=True)), x)
    check(lambda v: (v.kthvalue(k), v.topk(k, largest=largest), v.median(1), v.sort(1)), x.nan_to_num().long())


@pytest.mark.parametrize("fn", [torch.sort, torch.median, torch.nanmedian, lambda x: x.topk(1), torch.msort])
def test_no_axes(fn: Callable[..., Any]) -> None:
    check(fn, torch.tensor(2.5))


def test_no_elements() -> None:
    check(torch.median, torch.empty(0))
    check(lambda x: x.sort(1), torch.empty(2, 0))
    check(lambda x: x.topk(0), X)


# -------------------------------------------------------------------- searching

EDGES = torch.tensor([-2.0, 0.0, 0.0, 1.0, 5.0])
VALUES = torch.tensor([[-3.0, -2.0, 0.0], [0.5, 5.0, 6.0], [NAN, INF, -INF]])


@pytest.mark.share(2)
@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_searches(right: bool, dtype: torch.dtype) -> None:
    edges, values = EDGES.to(dtype), VALUES.to(dtype)
    check(lambda e, v: torch.searchsorted(e, v, right=right), edges, values)
    check(lambda e, v: torch.bucketize(v, e, right=right, out_int32=True), edges, values)


def test_searches_in_rows_in_any_order_and_for_a_number() -> None:
    rows = torch.stack([EDGES, EDGES + 1, EDGES * 2])
    check(lambda e, v: torch.searchsorted(e, v, side="right"), rows, VALUES, dynamic=True)
    order = torch.tensor([4, 2, 1, 0, 3])
    check(lambda e, v, k: torch.searchsorted(e, v, sorter=k), EDGES[order.argsort()], VALUES, order)
    check(lambda e: torch.searchsorted(e, 0.5), EDGES)
    check(lambda e: torch.bucketize(3, e), EDGES.long())


@pytest.mark.parametrize(
    "select",
    [
        lambda s: s.sort().values.flip(-1)[..., :1],
        lambda s: s.topk(3).values[..., 1:2],
        lambda s: s.flip(1).contiguous()[:, 3:4],
        lambda s: s.t().contiguous().t()[:, 2:3],
        lambda s: s.gather(1, s.argmax(-1, keepdim=True)),
    ],
)
def test_what_is_picked_of_narrow_values_is_among_them(select: Callable[..., Any]) -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        product = x * y
        return (product == select(product)).any(-1)

    x = torch.sin(torch.arange(60.0) ** 2).reshape(3, 20).bfloat16()
    check(fn, x, x.cos(), grad=False)

"""Bags of rows of a table, against eager PyTorch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from daceopt import optimized_module
from tests.capture.torch.checking import check

TABLE = torch.cos(torch.arange(60.0) * 1.3).reshape(10, 6)
ROWS = torch.tensor([1, 9, 0, 3, 3, 2, 2, 7, 3, 5])
WEIGHTS = torch.linspace(-1, 1, 10)
EVEN, UNEVEN = torch.tensor([0, 5]), torch.tensor([0, 0, 3, 4, 10])  # empty bags first and last


def bag(table: Any, rows: Any = ROWS, offsets: Any = None, **options: Any) -> Any:
    return F.embedding_bag(rows, table * 1, offsets, **options)


def weighted(table: Any, weights: Any, **options: Any) -> Any:
    return bag(table, offsets=UNEVEN, mode="sum", per_sample_weights=weights, **options)


CASES = {
    "mean": lambda x: bag(x, offsets=UNEVEN),
    "sum": lambda x: bag(x, offsets=UNEVEN, mode="sum"),
    "even": lambda x: bag(x, offsets=EVEN, mode="sum"),
    "rows of indices": lambda x: bag(x, ROWS.view(2, 5)),
    "one each": lambda x: bag(x, ROWS.view(10, 1), mode="sum"),
    "weights": lambda x: weighted(x, x.flatten()[:10]),
    "padding": lambda x: bag(x, offsets=UNEVEN, padding_idx=3),
    "padding, even": lambda x: bag(x, offsets=EVEN, padding_idx=-7, mode="sum"),
    "padding and weights": lambda x: bag(
        x, offsets=UNEVEN, padding_idx=3, mode="sum", per_sample_weights=WEIGHTS.to(x.dtype)
    ),
    "last offset": lambda x: bag(x, offsets=UNEVEN, include_last_offset=True),
    "an int32": lambda x: bag(x, ROWS.int(), offsets=UNEVEN.int()),
}


@pytest.mark.share(2)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bags(name: str, dtype: torch.dtype) -> None:
    check(CASES[name], TABLE.to(dtype))


def test_bags_given_at_run_time() -> None:
    check(lambda x, rows, offsets: bag(x, rows, offsets), TABLE, ROWS, UNEVEN, dynamic=True)
    check(lambda x, rows, offsets: bag(x, rows, offsets, mode="sum"), TABLE, ROWS, UNEVEN, dynamic=False)


def test_the_largest_of_a_bag_is_left_to_aten() -> None:
    check(lambda x: bag(x, offsets=EVEN, mode="max"), TABLE, native=False)


@pytest.mark.parametrize("training", [False, True])
def test_a_module_compiled(training: bool) -> None:
    model = optimized_module(nn.EmbeddingBag(10, 6, padding_idx=3, mode="mean"), fallback="raise")
    eager = nn.EmbeddingBag(10, 6, padding_idx=3, mode="mean")
    eager.load_state_dict(model.state_dict())
    with torch.set_grad_enabled(training):
        ours, theirs = model(ROWS, UNEVEN), eager(ROWS, UNEVEN)
    torch.testing.assert_close(ours, theirs)
    if training:
        ours.square().sum().backward()
        theirs.square().sum().backward()
        torch.testing.assert_close(model.weight.grad, eager.weight.grad)


def test_rows_that_the_table_lacks() -> None:
    model = optimized_module(nn.EmbeddingBag(10, 6), fallback="raise")
    with pytest.raises((IndexError, RuntimeError), match="takes value 10 which is not in the valid range"):
        model(torch.tensor([1, 10]), torch.tensor([0]))

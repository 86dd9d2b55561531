"""Running sums and products."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from daceopt import ops
from daceopt.ir.interpreter.interpret import interpret
from tests.autodiff.checking import check as check_gradient
from tests.ops.compiled import compiled
from tests.ops.single import check, lowered, single
from tests.ops.test_gradients import op

SWITCHES = [(0, 0), (0, 1), (1, 0), (1, 1)]


def data(dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(0).integers(1, 4, (2, 5, 3)).astype(dtype)


@pytest.mark.parametrize("exclusive, reverse", SWITCHES)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64", "uint32", "uint64"])
def test_cumulative_sum(dtype: str, exclusive: int, reverse: int) -> None:
    for axis in (0, 1, -1):
        inputs = [data(dtype), np.array(axis, np.int32)]
        check("CumSum", inputs, constants=[1], exclusive=exclusive, reverse=reverse)
    check("CumSum", [data(dtype)[:, :0], np.array(1)], constants=[1], exclusive=exclusive, reverse=reverse)


@pytest.mark.parametrize("exclusive, reverse", SWITCHES)
@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_cumulative_product(dtype: str, exclusive: int, reverse: int) -> None:
    x, axis = data(dtype), np.array([1])
    graph, feeds = single("CumProd", [x, axis], constants=[1], opset=26, like=[x], exclusive=exclusive, reverse=reverse)
    run = x[:, ::-1] if reverse else x
    expected = np.cumprod(run, axis=1)
    if exclusive:
        expected = np.concatenate([np.ones_like(expected[:, :1]), expected[:, :-1]], 1)
    expected = expected[:, ::-1] if reverse else expected
    np.testing.assert_array_equal(interpret(lowered(graph), feeds)[graph.outputs[0]], expected)


def test_long_float_sums_are_accurate() -> None:
    x = np.full(100_000, 0.1, np.float32)
    (ours,) = compiled("CumSum", [x, np.array(0)], constants=[1])
    np.testing.assert_allclose(ours, np.cumsum(x.astype(np.float64)), rtol=1e-6)


@pytest.mark.parametrize("exclusive, reverse", SWITCHES)
def test_gradient(exclusive: int, reverse: int) -> None:
    def running(x: torch.Tensor) -> torch.Tensor:
        run = x.flip(1) if reverse else x
        total = torch.cumsum(run, 1) - (run if exclusive else 0)
        return total.flip(1) if reverse else total

    check_gradient(op("CumSum", (2, 4), {1: np.array(1)}, exclusive=exclusive, reverse=reverse), running, (2, 4))


def test_gradients_of_products() -> None:
    check_gradient(op("CumProd", (2, 4), {1: np.array(1)}), lambda x: torch.cumprod(x, 1), (2, 4))
    line = next(c for c in ops.coverage() if c.op_type == "CumProd")
    assert line.gradient == "rule"


def test_an_axis_that_is_not_known() -> None:
    graph, _ = single("CumSum", [data(), np.array(1)])
    assert "computed at run time" in str(ops.why_unsupported(graph, graph.operators()[0]))

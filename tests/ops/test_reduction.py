"""Reductions, softmax and arg-reductions, with axes in both forms."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from daceopt.ir.interpret import interpret
from tests.ops.single import check, lowered, single

REDUCTIONS = [f"Reduce{name}" for name in "Sum Mean Max Min Prod L1 L2 SumSquare LogSum LogSumExp".split()]


def data(dtype: str = "float32", shape: tuple[int, ...] = (2, 3, 4)) -> np.ndarray:
    return (np.random.default_rng(3).uniform(0.5, 4, size=shape)).astype(dtype)


def axes(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


@pytest.mark.parametrize("op_type", REDUCTIONS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("keepdims", [0, 1])
def test_over_axes(op_type: str, dtype: str, keepdims: int) -> None:
    check(op_type, [data(dtype), axes(1)], constants=[1], keepdims=keepdims)
    check(op_type, [data(dtype), axes(-1, 0)], constants=[1], keepdims=keepdims)
    check(op_type, [data(dtype)], keepdims=keepdims)


@pytest.mark.parametrize("op_type", ["ReduceMean", "ReduceMax", "ReduceL2"])
def test_axes_as_an_attribute(op_type: str) -> None:
    check(op_type, [data()], opset=13, axes=[0, 2], keepdims=0)


@pytest.mark.parametrize("op_type", ["ReduceSum", "ReduceMax", "ReduceProd", "ReduceSumSquare"])
def test_integers(op_type: str) -> None:
    check(op_type, [data("int32"), axes(1)], constants=[1])
    check(op_type, [data("int64"), axes(1)], constants=[1])


@pytest.mark.parametrize("op_type", ["ReduceSum", "ReduceSumSquare", "ReduceMax"])
def test_no_axes_may_mean_no_reduction(op_type: str) -> None:
    check(op_type, [data()], noop_with_empty_axes=0)
    graph, feeds = single("ReduceSum", [data()], noop_with_empty_axes=1)
    np.testing.assert_array_equal(interpret(lowered(graph), feeds)[graph.outputs[0]], data())


def test_infinities_of_log_sum_exp() -> None:
    rows = np.array([[-np.inf, -np.inf], [-np.inf, 1.0], [np.inf, 1.0], [np.nan, 0.0], [1000.0, 1000.0]], np.float32)
    graph, feeds = single("ReduceLogSumExp", [rows, axes(1)], constants=[1], keepdims=0)
    ours = interpret(lowered(graph), feeds)[graph.outputs[0]]
    np.testing.assert_allclose(ours, torch.logsumexp(torch.from_numpy(rows), 1).numpy(), rtol=1e-6)


@pytest.mark.parametrize("op_type", ["ReduceSum", "ReduceProd", "ReduceMean"])
def test_of_nothing(op_type: str) -> None:
    check(op_type, [np.zeros((2, 0, 3), np.float32), axes(0)], constants=[1])


@pytest.mark.parametrize("op_type", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("select_last_index", [0, 1])
@pytest.mark.parametrize("axis", [0, -1])
def test_arg(op_type: str, select_last_index: int, axis: int) -> None:
    x = np.array([[3, 1, 3], [0, 0, 2], [3, 1, 0]], np.float32)
    check(op_type, [x], axis=axis, select_last_index=select_last_index, keepdims=0)
    check(op_type, [x.astype(np.int64)], axis=axis, select_last_index=select_last_index)


@pytest.mark.parametrize("op_type", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_softmax(op_type: str, dtype: str, axis: int) -> None:
    check(op_type, [data(dtype)], axis=axis)


def test_softmax_over_all_later_axes_before_opset_13() -> None:
    x = data()
    graph, feeds = single("Softmax", [x], opset=11, axis=1)
    expected = torch.softmax(torch.from_numpy(x).double().flatten(1), 1).reshape(x.shape)
    np.testing.assert_allclose(interpret(lowered(graph), feeds)[graph.outputs[0]], expected, rtol=1e-6)


@pytest.mark.parametrize("op_type, function", [("Softmax", torch.softmax), ("LogSoftmax", torch.log_softmax)])
def test_softmax_of_extreme_rows(op_type: str, function: object) -> None:
    rows = np.array([[-np.inf, 0.0, 1.0], [1e30, -1e30, 0], [-np.inf] * 3, [np.nan, 0, 0], [3e38, 3e38, 0]], np.float32)
    graph, feeds = single(op_type, [rows], axis=-1)
    ours = interpret(lowered(graph), feeds)[graph.outputs[0]]
    np.testing.assert_allclose(ours, function(torch.from_numpy(rows), -1).numpy(), rtol=1e-6)  # type: ignore[operator]

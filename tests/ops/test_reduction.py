"""Reductions, softmax and arg-reductions, with axes in both forms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from daceopt import ops
from daceopt.ir.interpreter.interpret import interpret
from tests.ops.compiled import compiled
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


IDENTITIES: list[tuple[str, str, Any]] = [
    ("ReduceSum", "int8", 0),
    ("ReduceProd", "uint32", 1),
    ("ReduceMax", "float32", -np.inf),
    ("ReduceMin", "float64", np.inf),
    ("ReduceMax", "int16", -(2**15)),
    ("ReduceMin", "uint8", 255),
    ("ReduceMax", "bool", False),
    ("ReduceMin", "bool", True),
    ("ReduceMean", "float32", np.nan),
    ("ReduceMean", "int32", 0),
    ("ReduceL2", "float32", 0),
    ("ReduceLogSum", "float32", -np.inf),
    ("ReduceLogSumExp", "float32", -np.inf),
    ("ReduceSumSquare", "float64", 0),
]


@pytest.mark.parametrize("op_type, dtype, identity", IDENTITIES)
def test_over_nothing(op_type: str, dtype: str, identity: Any) -> None:
    graph, feeds = single(
        op_type, [np.zeros((2, 0, 3), dtype), axes(1)], constants=[1], like=[np.zeros((2, 3), dtype)], keepdims=0
    )
    np.testing.assert_array_equal(interpret(lowered(graph), feeds)[graph.outputs[0]], np.full((2, 3), identity, dtype))


@pytest.mark.parametrize("op_type", ["ReduceMax", "ReduceMin"])
def test_of_bool(op_type: str) -> None:
    x = np.array([[True, True, False], [False, False, False], [True, True, True]])
    check(op_type, [x, axes(1)], constants=[1])
    (ours,) = compiled(op_type, [x, axes(1)], constants=[1], keepdims=0)
    np.testing.assert_array_equal(ours, x.any(1) if op_type == "ReduceMax" else x.all(1))


@pytest.mark.parametrize("op_type", REDUCTIONS)
def test_of_a_scalar(op_type: str) -> None:
    graph, feeds = single(op_type, [np.array(2, np.float32), axes(-1)], constants=[1], like=[np.array(2, np.float32)])
    expected = {"ReduceSumSquare": 4, "ReduceLogSum": np.log(np.float32(2))}.get(op_type, 2)
    np.testing.assert_allclose(interpret(lowered(graph), feeds)[graph.outputs[0]], expected)


@pytest.mark.parametrize("op_type, expected", [("ReduceL2", 5), ("ReduceLogSum", 1), ("ReduceLogSumExp", 4)])
def test_integers_are_rounded_towards_zero(op_type: str, expected: int) -> None:
    graph, feeds = single(op_type, [np.array([3, 4], np.int32)], opset=13, like=[np.zeros(1, np.int32)])
    assert interpret(lowered(graph), feeds)[graph.outputs[0]] == expected


@pytest.mark.parametrize("op_type", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("select_last_index", [0, 1])
@pytest.mark.parametrize("axis", [0, -1])
def test_arg(op_type: str, select_last_index: int, axis: int) -> None:
    x = np.array([[3, 1, 3], [0, 0, 2], [3, 1, 0]], np.float32)
    check(op_type, [x], axis=axis, select_last_index=select_last_index, keepdims=0)
    check(op_type, [x.astype(np.int64)], axis=axis, select_last_index=select_last_index)


@pytest.mark.parametrize("op_type", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("dtype", ["float64", "int8", "int16", "int32", "uint8", "uint16", "uint32", "uint64"])
def test_arg_of_types(op_type: str, dtype: str) -> None:
    limits: Any = np.finfo(dtype) if dtype == "float64" else np.iinfo(dtype)
    check(op_type, [np.array([[1, limits.max, limits.min, limits.max], [limits.min, 1, 1, 2]], dtype)], axis=1)


@pytest.mark.parametrize("last, indices", [(0, [1, 0]), (1, [3, 3])])
def test_nan_is_an_extremum(last: int, indices: list[int]) -> None:
    x = np.array([[5, np.nan, np.inf, np.nan], [np.nan] * 4], np.float32)
    for op_type in ("ArgMax", "ArgMin"):
        graph, feeds = single(op_type, [x], axis=1, keepdims=0, select_last_index=last)
        np.testing.assert_array_equal(interpret(lowered(graph), feeds)[graph.outputs[0]], indices)


def test_arg_of_nothing_is_refused() -> None:
    graph, _ = single("ArgMax", [np.zeros((2, 0), np.float32)], like=[np.zeros((2, 1), np.int64)], axis=1)
    assert "expected elements along the axis" in str(ops.why_unsupported(graph, graph.operators()[0]))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_hardmax(dtype: str, axis: int) -> None:
    x = np.round(data(dtype))  # with ties: the first counts
    check("Hardmax", [x], axis=axis)
    check("Hardmax", [x])


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_hardmax_over_all_later_axes_before_opset_13(axis: int) -> None:
    x = data()
    graph, feeds = single("Hardmax", [x], opset=11, like=[x], axis=axis)
    rows = x.reshape(int(np.prod(x.shape[:axis])), -1)
    expected = np.eye(rows.shape[1])[rows.argmax(1)].reshape(x.shape)
    np.testing.assert_array_equal(interpret(lowered(graph), feeds)[graph.outputs[0]], expected)


@pytest.mark.parametrize("shape", [(3, 3), (2, 4, 5, 5), (1, 1), (0, 2, 2)])
def test_determinant(shape: tuple[int, ...]) -> None:
    check("Det", [np.random.default_rng(0).standard_normal(shape).astype(np.float32)])


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

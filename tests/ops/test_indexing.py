"""Gathers, scatters and other picking by run-time index."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch

from daceopt import ops
from daceopt.errors import RunIndexError
from daceopt.ir.interpreter.interpret import interpret
from tests.autodiff.checking import check as check_gradient
from tests.ops.compiled import compiled
from tests.ops.single import check, lowered, reference, single
from tests.ops.test_gradients import op

X = np.random.default_rng(1).standard_normal((3, 4, 5)).astype(np.float32)


def ints(*values: Any) -> np.ndarray:
    return np.array(values, np.int64)


GATHERS: list[tuple[str, list[Any], dict[str, Any]]] = [
    ("Gather", [X.astype(np.uint8), ints(1, -1)], {"axis": 1}),
    ("GatherElements", [X > 0, np.full((3, 4, 2), -1, np.int32)], {"axis": 2}),
    ("GatherND", [X, ints([0, 1], [2, -1])], {}),
    ("GatherND", [X, ints([[0, 1, 2]], [[-3, -4, -5]])], {}),
    ("GatherND", [X, ints([1, 2], [-1, 0], [0, 0])], {"batch_dims": 1}),
    ("GatherND", [X, ints([[1]] * 4, [[0]] * 4, [[4]] * 4)], {"batch_dims": 2}),
    ("GatherND", [X, np.zeros((0, 2), np.int64)], {}),
    ("OneHot", [ints(0, 2, -1), np.int64(3), np.array([2.0, 5.0], np.float32)], {}),
    ("OneHot", [ints([0, 2], [-1, 7]), np.array([3.0], np.float32), ints(2, 5)], {"axis": 1}),
    ("OneHot", [np.array([0.0, -3.0], np.float32), np.int64(3), np.array([False, True])], {"axis": -2}),
    ("OneHot", [np.array([0, 255], np.uint8), np.int32(2), np.array([0, 1], np.int8)], {"axis": 0}),
    ("ReverseSequence", [X, ints(1, 3, 2, 0)], {}),
    ("ReverseSequence", [X, ints(5, 1, 4)], {"batch_axis": 0, "time_axis": 2}),
]


@pytest.mark.parametrize("op_type, inputs, attributes", GATHERS)
def test_gathers(op_type: str, inputs: list[Any], attributes: dict[str, Any]) -> None:
    inputs = [np.asarray(v) for v in inputs]
    constants = [1] if op_type == "OneHot" else []
    if op_type == "OneHot":  # where the reference takes indices out of range modulo the depth, the standard says off
        depth, places, axis = int(inputs[1].reshape(())), inputs[0].astype(np.int64), attributes.get("axis", -1)
        hot = np.expand_dims(np.where(places < 0, places + depth, places), axis)
        steps = np.arange(depth).reshape([-1 if d == axis % hot.ndim else 1 for d in range(hot.ndim)])
        expected = np.where(hot == steps, inputs[2][1], inputs[2][0])
        graph, feeds = single(op_type, inputs, constants=constants, like=[expected], **attributes)
        np.testing.assert_array_equal(interpret(lowered(graph), feeds)[graph.outputs[0]], expected)
        return
    check(op_type, inputs, constants=constants, **attributes)


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
@pytest.mark.parametrize("dtype", ["float32", "int8", "uint64"])
def test_scatter_elements(reduction: str, dtype: str) -> None:
    data, updates = np.abs(3 * X).astype(dtype), np.abs(4 * X[::-1, :2]).astype(dtype)
    places = np.random.default_rng(0).integers(-4, 4, updates.shape)
    if reduction == "none":  # of duplicates the last one stays
        places = np.stack([np.zeros((3, 5), np.int64), np.full((3, 5), -1)], 1)
    check("ScatterElements", [data, places, updates], axis=1, reduction=reduction)
    check("ScatterElements", [data[0], places[0], updates[0]], axis=-2, reduction=reduction)


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
def test_scatter_nd(reduction: str) -> None:
    check("ScatterND", [X, ints([0], [-1]), X[1:]], reduction=reduction)
    check("ScatterND", [X, ints([[2, 1], [0, -4]]), X[:1, :2]], reduction=reduction)
    check("ScatterND", [X, ints([2, 1, 0], [0, -1, -1]), X[0, 0, :2]], reduction=reduction)
    check("ScatterND", [X.astype(np.int32), np.zeros((0, 1), np.int64), X[:0].astype(np.int32)], reduction=reduction)


def test_duplicates_add_up() -> None:
    data, updates = np.ones(4, np.float32), np.arange(6, dtype=np.float32)
    graph, feeds = single("ScatterElements", [data, ints(3, 3, 3, -1, 0, 0), updates], like=[data], reduction="add")
    np.testing.assert_array_equal(interpret(lowered(graph), feeds)[graph.outputs[0]], [10, 1, 1, 7])


@pytest.mark.parametrize("mode", ["linear", "circular"])
@pytest.mark.parametrize("axis", [1, -2])
def test_tensor_scatter(mode: str, axis: int) -> None:
    past = np.zeros((2, 4, 6, 3), np.float32)
    update = np.random.default_rng(0).standard_normal((2, 2, 6, 3) if axis == 1 else (2, 4, 2, 3)).astype(np.float32)
    starts = ints(1, 2) if mode == "linear" else ints(3, 5)
    check("TensorScatter", [past, update, starts], opset=24, mode=mode, axis=axis)
    check("TensorScatter", [past, update], opset=24, mode=mode, axis=axis)


# -------------------------------------------------------------------- compiled

OUT_OF_RANGE: list[tuple[str, list[np.ndarray], dict[str, Any]]] = [
    ("Gather", [X, ints(0, 3)], {}),
    ("GatherElements", [X, np.full((3, 4, 5), -5)], {"axis": 1}),
    ("GatherND", [X, ints([0, 4])], {}),
    ("ScatterElements", [X, np.full((1, 1, 1), 4), X[:1, :1, :1]], {"axis": 1}),
    ("ScatterND", [X, ints([0, -5]), X[:1, 0]], {}),
    ("ScatterElements", [X[:, :2], np.zeros((1, 3, 1), np.int64), X[:1, :3, :1]], {}),
    ("ReverseSequence", [X, ints(4, 1, 1, 1)], {}),
    ("ReverseSequence", [X, ints(-1, 1, 1, 1)], {}),
    ("TensorScatter", [X, X[:, :2], ints(0, 3, 0)], {"opset": 24}),
    ("TensorScatter", [X, X[:, :2], ints(0, -1, 0)], {"opset": 24}),
]


@pytest.mark.parametrize("op_type, inputs, attributes", OUT_OF_RANGE)
def test_an_index_out_of_range_ends_the_call(
    op_type: str, inputs: list[np.ndarray], attributes: dict[str, Any]
) -> None:
    with pytest.raises(RunIndexError):
        compiled(op_type, inputs, **attributes)
    shape = {"Gather": (2, 4, 5), "GatherND": (1, 5)}.get(op_type, inputs[0].shape)
    graph, feeds = single(op_type, inputs, like=[np.zeros(shape, np.float32)], **attributes)
    with pytest.raises(IndexError):
        interpret(lowered(graph), feeds)


COMPILED: list[tuple[str, list[np.ndarray], dict[str, Any]]] = [
    ("GatherND", [X, ints([1, 2], [-1, 0], [0, 0])], {"batch_dims": 1}),
    ("GatherElements", [X > 0, np.full((3, 4, 2), -1, np.int32)], {"axis": 2}),
    ("ScatterND", [X, ints([[2, 1], [0, -4]]), X[:1, :2]], {"reduction": "mul"}),
    ("ScatterElements", [X, ints(1, -1).reshape(1, 2, 1), X[:1, :2, :1]], {"axis": 1}),
    ("ScatterElements", [X.astype(np.float16), ints(1, -1).reshape(1, 2, 1), X[:1, :2, :1].astype(np.float16)], {}),
    ("TensorScatter", [X, X[:, :2], ints(0, 3, 2)], {"mode": "circular", "opset": 24}),
    ("ReverseSequence", [X.astype(np.float16), ints(5, 1, 4)], {"batch_axis": 0, "time_axis": 2}),
]


@pytest.mark.parametrize("op_type, inputs, attributes", COMPILED)
def test_compiled(op_type: str, inputs: list[np.ndarray], attributes: dict[str, Any]) -> None:
    (ours,) = compiled(op_type, inputs, **attributes)
    opset = attributes.get("opset", 23)
    expected = reference(op_type, inputs, 1, opset, **{k: v for k, v in attributes.items() if k != "opset"})[0]
    assert ours.dtype == expected.dtype
    np.testing.assert_array_equal(ours, expected)


def test_reductions_of_halves_round_once() -> None:
    data, updates = np.zeros(2, np.float16), np.full(4096, 1.0, np.float16)
    (ours,) = compiled("ScatterElements", [data, np.zeros(4096, np.int64), updates], reduction="add")
    assert ours.dtype == np.float16
    assert ours.tolist() == [4096, 0]


# -------------------------------------------------------------------- refusals and gradients


@pytest.mark.parametrize(
    "op_type, inputs, attributes, message",
    [
        ("GatherND", [X[:0], np.zeros((2, 1), np.int64)], {}, "extents.*0"),
        ("ScatterND", [X[:0], np.zeros((2, 1), np.int64), X[:2]], {}, "extents.*0"),
        ("ScatterElements", [X[:, :0], np.zeros((1, 1, 1), np.int64), X[:1, :1, :1]], {"axis": 1}, "extents.*0"),
        ("OneHot", [ints(0), ints(3), X[0, 0, :2]], {}, "Depth"),
        ("ScatterElements", [X, np.zeros((1, 2, 1), np.int64), X[:1, :1, :1]], {}, "expected .*1.*2.*1"),
        ("ScatterND", [X, ints([0], [1]), X[:1]], {}, "expected .*2.*4.*5"),
        ("ReverseSequence", [X, ints(1, 1)], {}, r"expected \('4',\)"),
        ("TensorScatter", [X, X[:, :2], ints(0)], {"opset": 24}, r"expected \('3',\)"),
        ("NonMaxSuppression", [X[..., :4], X[:2]], {}, "expected .*2.*5.*4"),
    ],
)
def test_refusals(op_type: str, inputs: list[np.ndarray], attributes: dict[str, Any], message: str) -> None:
    graph, _ = single(op_type, inputs, like=[inputs[0]], **attributes)
    assert re.search(message, ops.why_unsupported(graph, graph.operators()[0]) or "")


def test_gradient_of_gather_nd() -> None:
    index = np.array([[0, 1], [2, 0], [0, 1]])
    check_gradient(op("GatherND", (3, 5)), lambda x, k: x[k[:, 0], k[:, 1]], (3, 4, 5), integers=[index])


@pytest.mark.parametrize("reduction", ["none", "add"])
def test_gradient_of_scatters(reduction: str) -> None:
    index = np.array([[0, 2, 1], [2, 1, 0]])

    def scatter(x: torch.Tensor, u: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return torch.scatter_add(x, 0, k, u) if reduction == "add" else torch.scatter(x, 0, k, u)

    def build(b: Any, x: str, u: str, k: str) -> str:
        return op("ScatterElements", (4, 3), axis=0, reduction=reduction)(b, x, k, u)

    check_gradient(build, scatter, (4, 3), (2, 3), integers=[index])

    def build_nd(b: Any, x: str, u: str, k: str) -> str:
        return op("ScatterND", (4, 5, 2), reduction=reduction)(b, x, k, u)

    def put(x: torch.Tensor, u: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return x.index_put((k[:, 0], k[:, 1]), u, accumulate=reduction == "add")

    check_gradient(build_nd, put, (4, 5, 2), (3, 2), integers=[[[0, 1], [3, 4], [1, 1]]])


def test_gradient_of_reverse_sequence() -> None:
    def reverse(x: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return torch.stack([torch.cat([r[:n].flip(0), r[n:]]) for r, n in zip(x.unbind(1), k.tolist())], 1)

    check_gradient(op("ReverseSequence", (4, 3)), reverse, (4, 3), integers=[[2, 4, 1]])


def test_gradient_of_tensor_scatter() -> None:
    def write(x: torch.Tensor, u: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        steps = (k[:, None] + torch.arange(2)) % 5
        return torch.scatter(x, 1, steps[..., None].expand(-1, -1, 3), u)

    check_gradient(op("TensorScatter", (2, 5, 3), mode="circular"), write, (2, 5, 3), (2, 2, 3), integers=[[1, 4]])
    check_gradient(op("TensorScatter", (2, 5, 3)), write, (2, 5, 3), (2, 2, 3), integers=[[3, 0]])

"""Pools against ONNX's reference evaluator and PyTorch."""

from __future__ import annotations

from typing import Any

import dace
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from daceopt.ir.interpreter.interpret import interpret
from tests.autodiff.checking import check as check_gradient
from tests.numerics import assert_within_rounding
from tests.ops.single import check, lowered, single


def data(*shape: int, dtype: str = "float32", seed: int = 0) -> np.ndarray:
    return np.asarray(np.random.default_rng((seed, *shape)).normal(size=shape) * 2).astype(dtype)


POOLS = [
    {"kernel_shape": [2, 2], "strides": [2, 2]},
    {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]},
    {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 0, 1]},
    {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1},
    {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "SAME_UPPER"},
]


@pytest.mark.parametrize("op_type", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize("attributes", POOLS)
def test_pool(op_type: str, attributes: dict[str, object]) -> None:
    check(op_type, [data(2, 3, 8, 8)], **attributes)


def test_average_pool_that_counts_its_padding() -> None:
    check("AveragePool", [data(2, 3, 8, 8)], kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1)


@pytest.mark.parametrize("op_type", ["GlobalAveragePool", "GlobalMaxPool"])
def test_global_pool(op_type: str) -> None:
    check(op_type, [data(2, 3, 4, 5)])


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_maximum_of_bytes(dtype: str) -> None:
    x = np.random.default_rng(0).integers(-128 if dtype == "int8" else 0, 100, (2, 3, 5, 6)).astype(dtype)
    check("MaxPool", [x], kernel_shape=[3, 2], pads=[1, 0, 1, 1], strides=[2, 1])


@pytest.mark.parametrize("columns", [0, 1])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_indices_of_maxima(rank: int, columns: int) -> None:
    x = data(2, 3, *(5, 6, 4)[:rank])
    options: dict[str, Any] = {"kernel_shape": [3, 2, 2][:rank], "strides": [2, 1, 2][:rank]}
    options |= {"dilations": [1, 2, 1][:rank], "pads": [1, 1, 0][:rank] * 2}
    function = getattr(F, f"max_pool{rank}d")
    expected, where = function(
        torch.from_numpy(x), options["kernel_shape"], options["strides"], options["pads"][:rank],
        options["dilations"], return_indices=True,
    )  # fmt: skip
    planes = where + torch.arange(6).reshape(2, 3, *[1] * rank) * int(np.prod(x.shape[2:]))
    if columns:
        places = np.unravel_index(where.numpy(), x.shape[2:])
        within = np.ravel_multi_index(places[::-1], x.shape[:1:-1])
        planes = torch.from_numpy(within) + (planes - where)
    graph, feeds = single(
        "MaxPool", [x], like=[expected.numpy(), planes.numpy()], opset=12, storage_order=columns, **options
    )
    found = interpret(lowered(graph), feeds)
    np.testing.assert_array_equal(found[graph.outputs[0]], expected)
    np.testing.assert_array_equal(found[graph.outputs[1]], planes)


def test_indices_alone() -> None:
    x = data(1, 2, 4, 4)
    _, where = F.max_pool2d(torch.from_numpy(x), 2, return_indices=True)
    graph, feeds = single("MaxPool", [x], like=[x[..., :2, :2], where.numpy()], kernel_shape=[2, 2], strides=[2, 2])
    graph.outputs.remove(graph.outputs[0])
    (node,) = graph.operators()
    names, attributes = graph.inputs_of(node), node.attributes
    graph.remove(node)
    graph.add_operator("MaxPool", names, [None, graph.outputs[0]], attributes)
    planes = where + torch.tensor([0, 16]).reshape(1, 2, 1, 1)
    np.testing.assert_array_equal(interpret(lowered(graph), feeds)[graph.outputs[0]], planes)


def test_average_of_padding_alone_is_zero() -> None:
    graph, feeds = single(
        "AveragePool", [data(1, 1, 2)], like=[np.empty((1, 1, 3), np.float32)], kernel_shape=[1], strides=[2],
        pads=[2, 1],
    )  # fmt: skip
    found = interpret(lowered(graph), feeds)[graph.outputs[0]]
    np.testing.assert_array_equal(found, [[[0, data(1, 1, 2)[0, 0, 0], 0]]])


NORMS: list[dict[str, Any]] = [
    {"kernel_shape": [3, 2], "p": 1},
    {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 0, 1]},
    {"kernel_shape": [2, 2], "dilations": [2, 1], "p": 3},
    {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "SAME_LOWER", "p": 4},
]


@pytest.mark.parametrize("attributes", NORMS)
def test_norm_pool(attributes: dict[str, Any]) -> None:
    check("LpPool", [np.abs(data(2, 3, 7, 6))], **attributes)


def test_last_windows_of_norms_reach_beyond_the_input() -> None:
    x = data(2, 3, 7, 6)
    options = {"kernel_shape": [2, 3], "strides": [2, 2]}
    graph, feeds = single("LpPool", [x], like=[np.empty((2, 3, 4, 3), np.float32)], ceil_mode=1, **options)
    wide = F.pad(torch.from_numpy(x).double(), (0, 1, 0, 1))
    expected = (F.avg_pool2d(wide**2, (2, 3), 2) * 6).sqrt()
    assert_within_rounding(interpret(lowered(graph), feeds)[graph.outputs[0]], expected)


def test_window_that_is_larger_than_its_input() -> None:
    x = data(1, 1, 4)
    like = [np.empty((1, 1, 1), np.float32)]
    graph, feeds = single("LpPool", [x], like=like, kernel_shape=[3], dilations=[2], strides=[3], p=1)
    expected = np.abs(x[..., ::2].astype(np.float64)).sum(axis=2, keepdims=True)
    assert_within_rounding(interpret(lowered(graph), feeds)[graph.outputs[0]], expected)


@pytest.mark.parametrize("p", [1, 2, 3])
def test_global_norm_pool(p: int) -> None:
    x = data(2, 3, 4, 5)
    graph, feeds = single("GlobalLpPool", [x], like=[np.empty((2, 3, 1, 1), np.float32)], p=p)
    expected = torch.from_numpy(x).double().flatten(2).norm(p, dim=2).reshape(2, 3, 1, 1)
    assert_within_rounding(interpret(lowered(graph), feeds)[graph.outputs[0]], expected)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7])
def test_local_response(size: int) -> None:
    # the evaluator takes the batch's size for the number of channels
    check("LRN", [data(5, 5, 3, 2)], size=size, alpha=0.3, beta=0.6, bias=1.5)


@pytest.mark.parametrize("shape", [None, [1, 2, 5, 7]])
def test_unpool(shape: list[int] | None) -> None:
    x = data(1, 2, 2, 3)
    where = np.asarray([[[[1, 2, 11], [13, 20, 17]], [[25, 26, 35], [37, 44, 47]]]])
    given = [] if shape is None else [np.asarray(shape)]
    check("MaxUnpool", [x, where, *given], constants=[2], kernel_shape=[2, 2], strides=[2, 2])


# -------------------------------------------------------------------- gradients


def operator(op_type: str, shape: tuple[int, ...], **attributes: Any) -> Any:
    def build(b: Any, *names: str) -> str:
        y = b.graph.add_array("y", shape, dace.float64)
        b.graph.add_operator(op_type, list(names), [y], attributes)
        return str(y)

    return build


def test_gradients_of_pools() -> None:
    shape = (2, 3, 7, 6)
    options = {"kernel_shape": [2, 3], "strides": [2, 1], "dilations": [2, 1]}
    check_gradient(
        operator("MaxPool", (2, 3, 3, 4), **options), lambda x: F.max_pool2d(x, (2, 3), (2, 1), 0, (2, 1)), shape
    )
    check_gradient(
        operator("AveragePool", (2, 3, 4, 2), kernel_shape=[2, 3], strides=[2, 3], ceil_mode=1),
        lambda x: F.avg_pool2d(x, (2, 3), (2, 3), ceil_mode=True),
        shape,
    )
    taps = torch.zeros(1, 1, 3, 3, dtype=torch.float64)
    taps[..., ::2, ::2] = 0.25
    check_gradient(
        operator("AveragePool", (2, 1, 5, 4), kernel_shape=[2, 2], dilations=[2, 2]),
        lambda x: F.conv2d(x, taps),
        (2, 1, 7, 6),
    )


@pytest.mark.parametrize("p", [1, 2, 3])
def test_gradients_of_norms(p: int) -> None:
    options = {"kernel_shape": [2, 3], "strides": [2, 1], "pads": [1, 0, 0, 1], "p": p}

    def pooled(x: torch.Tensor) -> torch.Tensor:
        return F.avg_pool2d(F.pad(x, (0, 1, 1, 0)).abs() ** p, (2, 3), (2, 1)).mul(6) ** (1 / p)

    check_gradient(operator("LpPool", (2, 3, 4, 5), **options), pooled, (2, 3, 7, 6))
    check_gradient(
        operator("GlobalLpPool", (2, 3, 1, 1), p=p), lambda x: x.norm(p, dim=(2, 3), keepdim=True), (2, 3, 4, 5)
    )


def test_gradient_of_the_norm_of_zeros_is_zero() -> None:
    check_gradient(
        operator("GlobalLpPool", (1, 1, 1)), lambda x: x.norm(2, dim=2, keepdim=True), values=[np.zeros((1, 1, 3))]
    )


@pytest.mark.parametrize("p", [1, 2])
def test_gradient_of_norm_normalization(p: int) -> None:
    check_gradient(operator("LpNormalization", (3, 4), p=p, axis=1), lambda x: F.normalize(x, p, 1), (3, 4))


def test_gradient_of_local_response() -> None:
    check_gradient(
        operator("LRN", (2, 5, 3), size=3, alpha=0.3, beta=0.6, bias=1.5),
        lambda x: F.local_response_norm(x, 3, 0.3, 0.6, 1.5),
        (2, 5, 3),
    )


def test_gradient_of_unpool() -> None:
    where = np.asarray([[[1, 2, 5]]])

    def build(b: Any, x: str) -> str:
        y = b.graph.add_array("y", (1, 1, 6), dace.float64)
        b.graph.add_operator("MaxUnpool", [x, b.constant(where)], [y], {"kernel_shape": [2], "strides": [2]})
        return str(y)

    check_gradient(build, lambda x: F.max_unpool1d(x, torch.from_numpy(where), 2, 2), (1, 1, 3))

"""Convolutions and their transposes against ONNX's reference evaluator and PyTorch."""

from __future__ import annotations

from typing import Any

import dace
import numpy as np
import pytest
import torch

from daceopt import ops
from daceopt.ir.graph.graph import Graph
from daceopt.ir.interpreter.interpret import interpret
from tests.autodiff.checking import check as check_gradient
from tests.numerics import assert_within_rounding
from tests.ops.single import check, lowered, single


def data(*shape: int, dtype: str = "float32", seed: int = 0) -> np.ndarray:
    return np.asarray(np.random.default_rng((seed, *shape)).normal(size=shape) * 2).astype(dtype)


CONVOLUTIONS = [
    ((2, 4, 8, 8), (6, 4, 3, 3), {}),
    ((2, 4, 9, 8), (6, 4, 3, 2), {"strides": [2, 1], "pads": [1, 0, 2, 1]}),
    ((2, 4, 8, 8), (8, 1, 3, 3), {"group": 4, "pads": [1, 1, 1, 1]}),
    ((2, 4, 9, 9), (6, 4, 3, 3), {"dilations": [2, 2]}),
    ((2, 3, 10), (4, 3, 3), {"strides": [2]}),
    ((1, 2, 5, 5, 5), (3, 2, 2, 2, 2), {}),
    ((1, 2, 7, 7), (3, 2, 3, 3), {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    ((1, 2, 8, 8), (3, 2, 3, 3), {"auto_pad": "SAME_LOWER", "strides": [2, 2]}),
    ((1, 2, 7, 7), (3, 2, 3, 3), {"auto_pad": "VALID"}),
]


@pytest.mark.parametrize("x, w, attributes", CONVOLUTIONS)
@pytest.mark.parametrize("bias", [False, True])
def test_convolution(x: tuple[int, ...], w: tuple[int, ...], attributes: dict[str, object], bias: bool) -> None:
    check("Conv", [data(*x), data(*w), *([data(w[0])] if bias else [])], **attributes)


# x, w, attributes of ONNX, the same for PyTorch (whose padding is symmetric), elements cut off at each end
TRANSPOSED: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any], dict[str, Any], list[tuple[int, int]]]] = [
    ((2, 4, 5), (4, 3, 3), {"strides": [2], "output_padding": [1]}, {"stride": 2, "output_padding": 1}, [(0, 0)]),
    ((2, 4, 5, 6), (4, 1, 3, 2), {"group": 2, "dilations": [2, 1]}, {"groups": 2, "dilation": (2, 1)}, [(0, 0)] * 2),
    ((2, 4, 5, 4), (4, 3, 3, 3), {"pads": [1, 0, 2, 1]}, {}, [(1, 2), (0, 1)]),
    ((1, 2, 3, 4, 3), (2, 3, 2, 3, 2), {"strides": [2, 1, 3]}, {"stride": (2, 1, 3)}, [(0, 0)] * 3),
    ((1, 2, 4, 4), (2, 1, 3, 3), {"strides": [3, 2], "output_shape": [11, 8]}, {"stride": (3, 2)}, [(0, 0), (1, 0)]),
    ((1, 2, 4), (2, 1, 4), {"strides": [2], "output_shape": [7], "auto_pad": "SAME_UPPER"}, {"stride": 2}, [(1, 2)]),
    ((1, 2, 4), (2, 1, 4), {"strides": [2], "output_shape": [7]}, {"stride": 2}, [(2, 1)]),
    ((1, 2, 4), (2, 1, 3), {"strides": [2], "auto_pad": "SAME_LOWER"}, {"stride": 2}, [(1, 0)]),
    ((1, 2, 4), (2, 1, 3), {"strides": [2], "auto_pad": "SAME_UPPER"}, {"stride": 2}, [(0, 1)]),
    ((1, 2, 4), (2, 1, 3), {"strides": [2], "auto_pad": "VALID"}, {"stride": 2}, [(0, 0)]),
    # the output padding reaches beyond what one more step of the window would
    ((1, 2, 3), (2, 1, 1), {"dilations": [4], "output_padding": [3]}, {"dilation": 4, "output_padding": 3}, [(0, 0)]),
]


def transpose(x: torch.Tensor, w: torch.Tensor, bias: Any, options: Any, cut: Any) -> torch.Tensor:
    function = getattr(torch.nn.functional, f"conv_transpose{w.dim() - 2}d")
    if "output_shape" in options:
        options = {k: v for k, v in options.items() if k != "output_shape"}
    y = function(x, w, bias, **options)
    return y[(slice(None), slice(None), *(slice(b, n - e) for (b, e), n in zip(cut, y.shape[2:])))]


def transposed_graph(x: np.ndarray, w: np.ndarray, bias: Any, y: torch.Tensor, given: Any) -> tuple[Graph, Any]:
    return single("ConvTranspose", [x, w, bias], like=[np.empty(tuple(y.shape), x.dtype)], **given)


@pytest.mark.parametrize("x, w, given, options, cut", TRANSPOSED)
@pytest.mark.parametrize("bias", [False, True])
def test_transposed_convolution(x: Any, w: Any, given: Any, options: Any, cut: Any, bias: bool) -> None:
    arrays = [data(*x), data(*w), data(w[1] * given.get("group", 1)) if bias else None]
    wide = [None if v is None else torch.from_numpy(v).double() for v in arrays]
    expected = transpose(*wide, options, cut)  # type: ignore[arg-type]
    graph, feeds = transposed_graph(*arrays, expected, given)  # type: ignore[arg-type]
    assert_within_rounding(interpret(lowered(graph), feeds)[graph.outputs[0]], expected)


@pytest.mark.parametrize("x, w, given, options, cut", TRANSPOSED)
def test_gradient_of_a_transposed_convolution(x: Any, w: Any, given: Any, options: Any, cut: Any) -> None:
    channels = w[1] * given.get("group", 1)
    shape = transpose(torch.zeros(x), torch.zeros(w), None, options, cut).shape

    def build(b: Any, *names: str) -> str:
        y = b.graph.add_array("y", tuple(shape), dace.float64)
        b.graph.add_operator("ConvTranspose", list(names), [y], given)
        return str(y)

    check_gradient(build, lambda *v: transpose(*v, options, cut), x, w, (channels,))


def test_transposed_convolution_with_negative_padding_says_why_not() -> None:
    graph, _ = transposed_graph(data(1, 1, 3), data(1, 1, 3), None, torch.zeros(1, 1, 6), {"pads": [-1, 0]})
    assert "negative padding" in str(ops.why_unsupported(graph, graph.operators()[0]))


@pytest.mark.parametrize("depth", [2, 60], ids=["float32", "float64"])
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("types", [("uint8", "int8"), ("uint8", "uint8"), ("int8", "int8")])
def test_integer_convolution(depth: int, per_channel: bool, types: tuple[str, str]) -> None:
    rng = np.random.default_rng(depth)

    def whole(dtype: str, *shape: int) -> np.ndarray:
        bounds = np.iinfo(dtype)
        return rng.integers(bounds.min, bounds.max, shape, dtype, endpoint=True)

    x, w = whole(types[0], 2, depth, 6, 5), whole(types[1], 3, depth, 3, 3)
    x_zero, w_zero = whole(types[0]), whole(types[1], *([3] if per_channel else []))
    graph, feeds = single("ConvInteger", [x, w, x_zero, w_zero], like=[np.empty((2, 3, 6, 5), np.int32)], pads=[1] * 4)
    centred = [v.astype(np.int64) for v in (x, w, x_zero, w_zero)]
    shifted = centred[1] - (centred[3].reshape(3, 1, 1, 1) if per_channel else centred[3])
    padded = np.pad(centred[0] - centred[2], ((0, 0), (0, 0), (1, 1), (1, 1)))
    patches = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    expected = np.einsum("nchwkl,ockl->nohw", patches, shifted)
    np.testing.assert_array_equal(interpret(lowered(graph), feeds)[graph.outputs[0]], expected)


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("past", [False, True])
@pytest.mark.parametrize("activation", ["none", "silu"])
def test_causal_convolution(size: int, past: bool, activation: str) -> None:
    x, w, bias, state = data(2, 3, 5), data(3, 1, size), data(3), data(2, 3, size - 1)
    inputs = [x, w, bias, state if past else None]
    graph, feeds = single("CausalConvWithState", inputs, opset=27, like=[x, state], activation=activation)
    found = interpret(lowered(graph), feeds)
    before = state if past else np.zeros_like(state)
    history = torch.from_numpy(np.concatenate([before, x], axis=2)).double()
    y = torch.conv1d(history, torch.from_numpy(w).double(), torch.from_numpy(bias).double(), groups=3)
    assert_within_rounding(found[graph.outputs[0]], y * y.sigmoid() if activation == "silu" else y)
    assert_within_rounding(found[graph.outputs[1]], history[:, :, 5:])
    del graph.outputs[0]
    graph.prune()
    assert_within_rounding(interpret(lowered(graph), feeds)[graph.outputs[0]], history[:, :, 5:])

"""Products and convolutions of 8-bit integers: exact sums, one rounding, at most one unit at what float32 makes a tie."""

from __future__ import annotations

from typing import Any

import dace
import numpy as np
import pytest

from daceopt import libs
from daceopt.errors import Unsupported
from daceopt.ir import types
from daceopt.ir.graph import Graph, row_major
from daceopt.ir.interpret import interpret
from daceopt.ir.nodes.quantized import LIMITS, QuantizedConvolution, QuantizedProduct
from daceopt.libs.onednn_quantized import why_no_units
from daceopt.transformations.layout._layout_costs import channels_last_strides
from tests.libs.harness import buffers, compile_graph

pytestmark = pytest.mark.skipif(why_no_units() is not None, reason=str(why_no_units()))

FULL: dict[str, Any] = {"zero_x": 131, "zero_y": 117}
RELU: dict[str, Any] = {"zero_y": 0, "low": 0}
CONVOLUTIONS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "3x3": ((2, 16, 9, 9), (32, 16, 3, 3), {"pads": [1, 1, 1, 1]}),
    "zero point and padding": ((2, 16, 9, 9), (32, 16, 3, 3), {"pads": [1, 1, 1, 1], **FULL}),
    "uneven padding": ((1, 16, 8, 7), (16, 16, 3, 2), {"pads": [0, 1, 2, 0], "strides": [2, 1], **FULL}),
    "1x1": ((2, 64, 7, 7), (32, 64, 1, 1), RELU),
    "1x1 strided": ((2, 64, 7, 7), (48, 64, 1, 1), {"strides": [2, 2], **FULL}),
    "clamped": ((2, 8, 7, 7), (5, 8, 1, 1), {"zero_x": 9, "zero_y": 3, "low": 0, "high": 77}),
    "colors": ((2, 3, 23, 23), (16, 3, 7, 7), {"pads": [3] * 4, "strides": [2, 2], **FULL}),
    "few channels": ((1, 5, 6, 6), (7, 5, 3, 3), {"pads": [1] * 4, **FULL}),
    "depthwise": ((2, 32, 9, 9), (32, 1, 3, 3), {"group": 32, "pads": [1] * 4, **FULL}),
    "depthwise strided": ((2, 24, 9, 9), (24, 1, 3, 3), {"group": 24, "pads": [1] * 4, "strides": [2, 2], **RELU}),
    "groups": ((2, 32, 9, 9), (64, 8, 3, 3), {"group": 4, "pads": [1] * 4, **FULL}),
    "uneven groups": ((2, 6, 9, 9), (9, 2, 3, 3), {"group": 3, "pads": [1] * 4, **FULL}),
    "dilated": ((1, 16, 12, 12), (16, 16, 3, 3), {"dilations": [2, 3], "pads": [2, 3, 2, 3], **FULL}),
    "one dimension": ((2, 16, 20), (8, 16, 5), {"pads": [2, 2], **FULL}),
    "three dimensions": ((1, 16, 5, 6, 7), (16, 16, 3, 3, 3), {"pads": [1] * 6, **FULL}),
    "no images": ((0, 16, 5, 5), (16, 16, 3, 3), {"pads": [1] * 4}),
    "deep": ((1, 2048, 4, 4), (16, 2048, 3, 3), {"pads": [1] * 4, **FULL}),
}
TYPES = [("uint8", "uint8"), ("int8", "int8"), ("uint8", "int8"), ("int8", "float32")]
DACE = {name: getattr(dace, name) for name in ("uint8", "int8", "float32")}


def _signed(attributes: dict[str, Any], x: str, y: str) -> dict[str, Any]:
    """The same with zero points that the types have."""
    moved = {"zero_x": 128 if x == "int8" else 0, "zero_y": 128 if y == "int8" else 0}
    found = {k: v - moved.get(k, 0) for k, v in attributes.items() if k in moved}
    found |= {"zero_y": 0} if y == "float32" else {}
    return {**attributes, **found}


def _random(shape: tuple[int, ...], name: str) -> np.ndarray:
    low, high = LIMITS[DACE[name]]
    values = np.random.default_rng(sum(shape)).integers(low, high, shape, np.int16, endpoint=True)
    return values.astype(name)


def _graph(cls: Any, x: np.ndarray, w: np.ndarray, y: str, out: tuple[int, ...], **attributes: Any) -> Graph:
    """The node over an input, with numbers that make results which fill their type."""
    graph, channels = Graph("quantized"), out[1 if cls is QuantizedConvolution else -1]
    rng = np.random.default_rng(channels)
    taps = w.size // channels
    scale = rng.uniform(0.3, 2, channels) / (60 * np.sqrt(max(taps, 1)))
    shift = rng.uniform(-40, 40, channels)
    reads = {"X": graph.add_input("x", x.shape, types.from_numpy(x.dtype)), "W": graph.add_constant("w", w)}
    reads |= {"S": graph.add_constant("s", scale), "B": graph.add_constant("b", shift)}
    name = graph.add_array("y", out, DACE[y])
    graph.add_node(cls("quantized", inputs=list(reads), **attributes), reads, {"Y": name})
    graph.add_output(name)
    return graph


def _executed(graph: Graph, x: np.ndarray) -> np.ndarray:
    """What the library computes, of images in the layout that their strides say."""
    arrays: dict[str, np.ndarray] = {}
    for name in buffers(graph):
        memory = np.zeros(int(np.prod(graph.shape(name))), types.to_numpy(graph.dtype(name)))
        steps = [s * memory.itemsize for s in graph.strides(name)]
        arrays[name] = np.lib.stride_tricks.as_strided(memory, graph.shape(name), steps)
    for name, value in (graph.constants | {graph.inputs[0]: x}).items():
        arrays[name][...] = value
    compile_graph(graph)(*arrays.values())
    return arrays[graph.outputs[0]]


def _check(graph: Graph, x: np.ndarray) -> None:
    """At most a unit beside the float64 evaluation, and that only where float32 may not tell which is nearer."""
    found = _executed(graph, x)
    wanted = interpret(graph, {graph.inputs[0]: x}, np.float64)[graph.outputs[0]]
    if found.dtype == np.float32:
        return np.testing.assert_allclose(found, wanted, rtol=3e-7, atol=3e-5)
    apart = np.abs(found.astype(int) - wanted.astype(int))
    assert apart.max(initial=0) <= 1 and np.count_nonzero(apart) <= 2e-4 * apart.size + 1


@pytest.mark.parametrize("layout", ["last", "first"])
@pytest.mark.parametrize("x, y", TYPES)
@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_convolution(case: str, x: str, y: str, layout: str) -> None:
    shape, kernel, attributes = CONVOLUTIONS[case]
    attributes = _signed(attributes, x, y)
    image, weights = _random(shape, x), _random(kernel, "int8")
    rank = len(kernel) - 2
    node = QuantizedConvolution("shape", **attributes)
    strides, dilations, begins, ends = node.window(rank)
    spatial = [
        (n + a + b - (k - 1) * d - 1) // s + 1
        for n, a, b, k, d, s in zip(shape[2:], begins, ends, kernel[2:], dilations, strides)
    ]
    graph = _graph(QuantizedConvolution, image, weights, y, (shape[0], kernel[0], *spatial), **attributes)
    for name in (*graph.inputs, *graph.outputs):
        own = graph.shape(name)
        graph.set_strides(name, channels_last_strides(own) if layout == "last" else row_major(own))
    _check(graph, image)


@pytest.mark.parametrize("x, y", TYPES)
@pytest.mark.parametrize("shape, columns", [((33, 65), 17), ((2, 3, 16, 64), 48), ((1, 768), 30), ((0, 8), 5)], ids=str)
@pytest.mark.parametrize("attributes", [{}, FULL, {"zero_x": 9, "zero_y": 3, "low": 0, "high": 99}], ids=str)
def test_product(attributes: dict[str, Any], shape: tuple[int, ...], columns: int, x: str, y: str) -> None:
    rows, weights = _random(shape, x), _random((shape[-1], columns), "int8")
    _check(_graph(QuantizedProduct, rows, weights, y, (*shape[:-1], columns), **_signed(attributes, x, y)), rows)


def test_pairs_of_products_do_not_saturate() -> None:
    """Two products of the largest numbers are more than 16 bits hold."""
    x, w = np.full((4, 64), 255, np.uint8), np.full((64, 16), 127, np.int8)
    graph = _graph(QuantizedProduct, x, w, "float32", (4, 16))
    _check(graph, x)


def test_weights_that_are_no_constant_say_so() -> None:
    graph = _graph(QuantizedProduct, _random((4, 8), "uint8"), _random((8, 3), "int8"), "int8", (4, 3))
    graph.constants.pop(graph.reads(graph.nodes()[0])["W"])
    with pytest.raises(Unsupported, match="no constant"):
        libs.choose(graph.nodes()[0], graph)

"""Products and convolutions of 8-bit integers: exact sums, rounded once, at most a unit off at ties in float32."""

from __future__ import annotations

from typing import Any

import dace
import numpy as np
import pytest

from daceopt import libs
from daceopt.errors import Unsupported
from daceopt.ir.graph.graph import Graph
from daceopt.ir.interpreter.interpret import interpret
from daceopt.ir.nodes.quantized import LIMITS, QuantizedConvolution, QuantizedProduct
from daceopt.ir.scalar import types
from daceopt.ir.scalar.dims import row_major
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


def _add(graph: Graph, cls: Any, x: np.ndarray, w: np.ndarray, y: str, out: tuple[int, ...], **settings: Any) -> None:
    """A node over an input of its own, with numbers that make results which fill their type."""
    channels = out[1 if cls is QuantizedConvolution else -1]
    rng = np.random.default_rng(channels)
    scale = rng.uniform(0.3, 2, channels) / (60 * np.sqrt(max(w.size // channels, 1)))
    reads = {"X": graph.add_input("x", x.shape, types.from_numpy(x.dtype)), "W": graph.add_constant("w", w)}
    reads |= {"S": graph.add_constant("s", scale), "B": graph.add_constant("b", rng.uniform(-40, 40, channels))}
    name = graph.add_array("y", out, DACE[y])
    graph.add_node(cls("quantized", inputs=list(reads), **settings), reads, {"Y": name})
    graph.add_output(name)


def _executed(graph: Graph, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What the library computes, of images in the layout that their strides say."""
    arrays: dict[str, np.ndarray] = {}
    for name in buffers(graph):
        memory = np.zeros(int(np.prod(graph.shape(name))), types.to_numpy(graph.dtype(name)))
        steps = [s * memory.itemsize for s in graph.strides(name)]
        arrays[name] = np.lib.stride_tricks.as_strided(memory, graph.shape(name), steps)
    for name, value in (graph.constants | feeds).items():
        arrays[name][...] = value
    compile_graph(graph)(*arrays.values())
    return arrays


def _check(graph: Graph, images: list[np.ndarray], cases: list[str]) -> None:
    """At most a unit beside the float64 evaluation, and that only where float32 may not tell which is nearer."""
    feeds = dict(zip(graph.inputs, images, strict=True))
    done, exact = _executed(graph, feeds), interpret(graph, feeds, np.float64)
    for case, name in zip(cases, graph.outputs, strict=True):
        found, wanted = done[name], exact[name]
        if found.dtype == np.float32:
            np.testing.assert_allclose(found, wanted, rtol=3e-7, atol=3e-5, err_msg=case)
            continue
        apart = np.abs(found.astype(int) - wanted.astype(int))
        assert apart.max(initial=0) <= 1 and np.count_nonzero(apart) <= 2e-4 * apart.size + 1, case


@pytest.mark.parametrize("x, y", TYPES)
def test_convolutions(x: str, y: str) -> None:
    graph, images, cases = Graph("convolutions"), [], []
    for case, (shape, kernel, given) in CONVOLUTIONS.items():
        settings = _signed(given, x, y)
        window = QuantizedConvolution("shape", **settings).window(len(kernel) - 2)
        spatial = [(n + a + b - (k - 1) * d - 1) // s + 1 for n, k, s, d, a, b in zip(shape[2:], kernel[2:], *window)]
        for layout in (channels_last_strides, row_major):
            image, weights = _random(shape, x), _random(kernel, "int8")
            _add(graph, QuantizedConvolution, image, weights, y, (shape[0], kernel[0], *spatial), **settings)
            for name in (graph.inputs[-1], graph.outputs[-1]):
                graph.set_strides(name, layout(graph.shape(name)))
            images.append(image)
            cases.append(f"{case}, {layout.__name__}")
    _check(graph, images, cases)


PRODUCTS = {"rows": ((33, 65), 17), "batch": ((2, 3, 16, 64), 48), "one": ((1, 768), 30), "none": ((0, 8), 5)}


@pytest.mark.parametrize("x, y", TYPES)
def test_products(x: str, y: str) -> None:
    graph, images, cases = Graph("products"), [], []
    for case, (shape, columns) in PRODUCTS.items():
        for given in ({}, FULL, {"zero_x": 9, "zero_y": 3, "low": 0, "high": 99}):
            rows, weights = _random(shape, x), _random((shape[-1], columns), "int8")
            _add(graph, QuantizedProduct, rows, weights, y, (*shape[:-1], columns), **_signed(given, x, y))
            images.append(rows)
            cases.append(f"{case}, {given}")
    _check(graph, images, cases)


@pytest.mark.parametrize("x, y", TYPES)
def test_products_of_two_operands(x: str, y: str) -> None:
    """Batches, with a zero point on both sides."""
    graph, (left, right) = Graph("both"), (_random((2, 3, 16, 64), x), _random((2, 3, 64, 40), x))
    reads = {"X": graph.add_input("x", left.shape, DACE[x]), "W": graph.add_input("w", right.shape, DACE[x])}
    reads["S"] = graph.add_constant("s", np.array([2e-4]))
    name = graph.add_array("y", (2, 3, 16, 40), DACE[y])
    settings = _signed(FULL, x, y) | {"zero_w": 77}
    graph.add_node(QuantizedProduct("both", inputs=list(reads), **settings), reads, {"Y": name})
    graph.add_output(name)
    _check(graph, [left, right], ["both"])


def test_pairs_of_products_do_not_saturate() -> None:
    """Two products of the largest numbers are more than 16 bits hold."""
    graph, x = Graph("largest"), np.full((4, 64), 255, np.uint8)
    _add(graph, QuantizedProduct, x, np.full((64, 16), 127, np.int8), "float32", (4, 16))
    _check(graph, [x], ["largest"])


def test_weights_that_are_no_constant_say_so() -> None:
    graph, (shape, kernel, settings) = Graph("weights"), CONVOLUTIONS["1x1"]
    _add(
        graph, QuantizedConvolution, _random(shape, "uint8"), _random(kernel, "int8"), "int8", (2, 32, 7, 7), **settings
    )
    graph.constants.pop(graph.reads(graph.nodes()[0])["W"])
    with pytest.raises(Unsupported, match="no constant"):
        libs.choose(graph.nodes()[0], graph)

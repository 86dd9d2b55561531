"""Dequantised products and convolutions become those of their integers, with the numbers of exact arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dace
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import daceopt
from daceopt import ops
from daceopt.capture.onnx.file import load
from daceopt.capture.onnx.importer import import_model
from daceopt.ir.graph.graph import Graph
from daceopt.ir.interpreter.interpret import interpret
from daceopt.ir.text.parse import parse
from daceopt.ir.text.render import render
from daceopt.libs.onednn_quantized import why_no_units
from daceopt.transformations.coarse.quantized_products import QuantizedProducts
from daceopt.transformations.coarse.requantization_removal import RequantizationRemoval
from tests.transformations.graphs import Net, near_misses

pytestmark = pytest.mark.skipif(why_no_units() is not None, reason=str(why_no_units()))
RNG = np.random.default_rng(5)
STEPS = {"uint8": (0.03, 119), "int8": (0.04, -7)}
BOUNDS = {"inside": (0.1, 2.0), "above": (8.0, 9.0), "below": (-9.0, -8.0)}  # of a Clip; others than the integers hold


class Quantized(Net):
    """A network whose arrays are quantised as ONNX Runtime does it."""

    def dequantized(self, name: str, scale: Any, zero: Any = None, axis: int = 1) -> str:
        parameters = [self.const(scale), *([] if zero is None else [zero])]
        return self.op(
            "DequantizeLinear", name, *parameters, shape=self.graph.shape(name), dtype=dace.float32, axis=axis
        )

    def quantized(self, name: str, kind: str = "uint8", scale: float = 0.05, zero: int = 3) -> str:
        """As integers."""
        operands = (self.const(scale), self.const(zero, kind))
        return self.op("QuantizeLinear", name, *operands, shape=self.graph.shape(name), dtype=getattr(dace, kind))

    def through(self, name: str, kind: str = "uint8", scale: float = 0.05, zero: int = 3) -> str:
        """As what the integers stand for."""
        return self.dequantized(self.quantized(name, kind, scale, zero), scale, self.const(zero, kind))

    def weights(self, shape: Sequence[int], axis: int = 0, kind: str = "int8", zero: int = 0) -> str:
        """Of a scale per channel."""
        integers = self.const(RNG.integers(-127, 128, shape) + zero, kind)
        zeros = self.const(np.full(shape[axis], zero), kind)
        return self.dequantized(integers, RNG.uniform(0.001, 0.01, shape[axis]), zeros, axis)

    def bias(self, channels: int) -> str:
        return self.dequantized(self.const(RNG.integers(-9000, 9000, channels), np.int32), 1e-4)


def convolution(net: Quantized, x: str, relu: str | None = None, shape: Any = (2, 6, 8, 8), **settings: Any) -> str:
    weights = settings.pop("weights", None) or net.weights((6, 4 // settings.get("group", 1), 3, 3))
    y = net.op("Conv", x, weights, net.bias(6), shape=shape, pads=[1, 1, 1, 1], **settings)
    if relu is None or relu == "Relu":
        return net.op(relu, y, shape=shape) if relu else y
    return net.op("Clip", y, *map(net.const, BOUNDS[relu]), shape=shape)


def agreed(graph: Graph, sites: int) -> Graph:
    """The transformed graph, whose exact results are those of the graph before."""
    feeds = {n: RNG.standard_normal(graph.shape(n)).astype(np.float32) for n in graph.inputs}
    after = graph.copy()
    assert len(QuantizedProducts().run(after).sites) == sites
    after.validate()
    lowered = [g.copy() for g in (graph, after)]
    for one in lowered:
        ops.lower_all(one)
    wanted, found = (interpret(one, feeds, np.float64) for one in lowered)
    for ours, theirs in zip(after.outputs, graph.outputs, strict=True):
        np.testing.assert_allclose(found[ours], wanted[theirs], rtol=1e-9, atol=1e-9)
    return after


@pytest.mark.share(2)
@pytest.mark.parametrize("kind", STEPS)
@pytest.mark.parametrize("relu", [None, "Relu", *BOUNDS])
def test_convolution(relu: str | None, kind: str) -> None:
    net = Quantized(x=(2, 4, 8, 8))
    y = convolution(net, net.through(net.x, kind, *STEPS[kind]), relu)
    after = agreed(net.done(net.quantized(y, kind, *STEPS[kind])), 1)
    assert [n.op_type for n in after.operators()] == ["QuantizeLinear"]


def test_what_a_convolution_without_quantisation_gives_is_float() -> None:
    net = Quantized(x=(2, 4, 8, 8))
    after = agreed(net.done(convolution(net, net.through(net.x), "Relu", group=2, strides=[1, 1])), 1)
    assert [n.op_type for n in after.operators()] == ["QuantizeLinear", "Relu"]


def test_products_and_what_is_added_to_them() -> None:
    net = Quantized(x=(2, 3, 16), z=(3, 16))
    y = net.op("MatMul", net.through(net.x), net.weights((16, 5), 1), shape=(2, 3, 5))
    y = net.quantized(net.op("Add", y, net.bias(5), shape=(2, 3, 5)))
    z = net.op("Gemm", net.through(net.z), net.weights((7, 16)), net.bias(7), shape=(3, 7), transB=1)
    after = agreed(net.done(y, z), 2)
    assert {n.op_type for n in after.operators()} == {"QuantizeLinear"}


def test_products_of_two_operands() -> None:
    net = Quantized(x=(2, 3, 16), z=(2, 16, 5))
    y = net.op("MatMul", net.through(net.x, "int8"), net.through(net.z, "uint8", 0.02, 130), shape=(2, 3, 5))
    agreed(net.done(net.quantized(y, "int8", 0.2)), 1)


def test_weights_around_another_number_than_0() -> None:
    net = Quantized(x=(2, 4, 8, 8))
    weights = net.weights((6, 4, 3, 3), kind="uint8", zero=128)
    agreed(net.done(net.quantized(convolution(net, net.through(net.x), weights=weights))), 1)


def test_an_array_that_others_read_stays_float() -> None:
    net = Quantized(x=(2, 4, 8, 8))
    y = convolution(net, net.through(net.x))
    agreed(net.done(net.quantized(y), net.op("Sqrt", net.op("Abs", y))), 1)


def test_operators_of_integers() -> None:
    """QLinearConv, whose bias is in steps of the sums, and QLinearMatMul."""
    net = Quantized(x=(2, 4, 8, 8), z=(3, 16))
    weights = (net.const(RNG.integers(-127, 128, (6, 4, 3, 3)), np.int8), net.const(RNG.uniform(0.01, 0.02, 6)))
    bias, result = net.const(RNG.integers(-3000, 3000, 6), np.int32), (net.const(0.4), net.const(7, np.uint8))
    given = (net.quantized(net.x), net.const(0.05), net.const(3, np.uint8))
    y = net.op("QLinearConv", *given, *weights, net.const(np.zeros(6), np.int8), *result, bias, shape=(2, 6, 6, 6))
    matrix = (net.const(RNG.integers(-127, 128, (16, 5)), np.int8), net.const(0.01), net.const(0, np.int8))
    rows = (net.quantized(net.z), net.const(0.05), net.const(3, np.uint8))
    z = net.op("QLinearMatMul", *rows, *matrix, *result, shape=(3, 5))
    exact = net.done(y, z)
    assert len(QuantizedProducts().run(exact.copy()).sites) == 2
    feeds = {n: RNG.standard_normal(exact.shape(n)).astype(np.float32) for n in exact.inputs}
    after = exact.copy()
    QuantizedProducts().run(after)
    for one in (exact, after):
        ops.lower_all(one)
    for found, wanted in zip(interpret(after, feeds, np.float64).values(), interpret(exact, feeds).values()):
        assert np.abs(found.astype(int) - wanted.astype(int)).max() <= 1


def test_the_text_of_a_graph_keeps_the_nodes() -> None:
    net = Quantized(x=(2, 4, 8, 8))
    after = agreed(net.done(net.quantized(convolution(net, net.through(net.x)))), 1)
    large: dict[str, np.ndarray] = {}
    text = render(after, large)
    assert render(parse(text, large)) == text


def far_weights(net: Quantized) -> str:
    integers = np.array([0, 255] * 108).reshape(6, 4, 3, 3)
    return net.dequantized(net.const(integers, np.uint8), 0.01, net.const(100, np.uint8), 0)


REFUSED = {
    "int8 does not hold": lambda net: convolution(net, net.through(net.x), weights=far_weights(net)),
    "no quantised constant": lambda net: convolution(
        net, net.through(net.x), weights=net.const(RNG.standard_normal((6, 4, 3, 3)))
    ),
    "not positive and finite": lambda net: convolution(net, net.through(net.x, scale=np.inf)),
    "float32 does not hold": lambda net: convolution(net, net.through(net.x, scale=1e-36)),
    "expected one for each channel": lambda net: convolution(
        net, net.through(net.x), weights=net.weights((6, 4, 3, 3), axis=1)
    ),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_is_refused_says_why(reason: str) -> None:
    net = Quantized(x=(2, 4, 8, 8))
    y = net.quantized(REFUSED[reason](net))
    assert reason in near_misses(QuantizedProducts(), net.done(y))


def test_a_scale_that_is_computed_is_refused() -> None:
    net = Quantized(x=(2, 4, 8, 8), scale=())
    integers = net.quantized(net.x)
    x = net.op("DequantizeLinear", integers, net.scale, shape=(2, 4, 8, 8), dtype=dace.float32)
    assert "is not known when compiling" in near_misses(QuantizedProducts(), net.done(convolution(net, x)))


# -------------------------------------------------------------------- moves


def test_maxima_and_shapes_of_integers() -> None:
    net = Quantized(x=(2, 4, 8, 8))
    y = net.op("MaxPool", net.through(net.x), shape=(2, 4, 4, 4), kernel_shape=[2, 2], strides=[2, 2])
    y = net.op("Reshape", net.through(y), net.const([2, 64], np.int64), shape=(2, 64))
    y = net.through(y)
    graph = net.done(net.quantized(net.op("Concat", y, y, shape=(2, 128), axis=1)))
    x = RNG.standard_normal((2, 4, 8, 8)).astype(np.float32)
    wanted = interpret(graph, {graph.inputs[0]: x})[graph.outputs[0]]
    while RequantizationRemoval().run(graph).sites:
        pass
    assert [n.op_type for n in graph.operators()].count("DequantizeLinear") == 0
    np.testing.assert_array_equal(interpret(graph, {graph.inputs[0]: x})[graph.outputs[0]], wanted)


def test_another_scale_is_another_rounding() -> None:
    net = Quantized(x=(2, 4, 8, 8))
    y = net.op("MaxPool", net.through(net.x), shape=(2, 4, 4, 4), kernel_shape=[2, 2], strides=[2, 2])
    assert "another type, scale or zero point" in near_misses(
        RequantizationRemoval(), net.done(net.quantized(y, scale=0.051))
    )


# -------------------------------------------------------------------- networks beside ONNX Runtime


def _residual() -> onnx.ModelProto:
    """Convolutions, a pool, a residual, a classifier."""
    inits: dict[str, np.ndarray] = {}
    nodes: list[Any] = []

    def add(op: str, inputs: list[str], weights: dict[str, Any] | None = None, **attributes: Any) -> str:
        for name, value in (weights or {}).items():
            inits[name] = np.asarray(value, np.float32)
        nodes.append(helper.make_node(op, [*inputs, *(weights or {})], [f"v{len(nodes)}"], **attributes))
        return f"v{len(nodes) - 1}"

    def conv(x: str, channels: tuple[int, int], edge: int, **settings: Any) -> str:
        shape = (channels[1], channels[0] // settings.get("group", 1), edge, edge)
        weights = RNG.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))
        given = {f"w{len(nodes)}": weights, f"b{len(nodes)}": RNG.standard_normal(channels[1]) / 4}
        return add("Conv", [x], given, kernel_shape=[edge, edge], pads=[edge // 2] * 4, **settings)

    x = add("Relu", [conv("x", (3, 16), 3, strides=[2, 2])])
    x = add("MaxPool", [x], kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    y = add("Relu", [conv(x, (16, 32), 1)])
    y = add("Relu", [conv(y, (32, 32), 3, group=32)])
    y = add("Relu", [add("Add", [conv(y, (32, 16), 1), x])])
    y = add("Flatten", [add("GlobalAveragePool", [y])])
    classes = {"w": RNG.standard_normal((10, 16)) / 4, "b": RNG.standard_normal(10)}
    y = add("Gemm", [y], classes, transB=1)
    return _model(nodes, (2, 3, 24, 24), y, (2, 10), inits)


def _attention() -> onnx.ModelProto:
    """Scores of queries and keys, and a layer with a bias."""
    inits = {n: (RNG.standard_normal((32, 32)) / 6).astype(np.float32) for n in ("q", "k", "v", "o")}
    inits |= {"b": RNG.standard_normal(32).astype(np.float32), "half": np.float32(0.2)}
    nodes = [helper.make_node("MatMul", ["x", n], [f"x{n}"]) for n in "qkv"]
    nodes += [helper.make_node("Transpose", ["xk"], ["kt"], perm=[0, 2, 1])]
    nodes += [helper.make_node("MatMul", ["xq", "kt"], ["s"]), helper.make_node("Mul", ["s", "half"], ["scaled"])]
    nodes += [helper.make_node("Softmax", ["scaled"], ["p"], axis=-1), helper.make_node("MatMul", ["p", "xv"], ["a"])]
    nodes += [helper.make_node("MatMul", ["a", "o"], ["ao"]), helper.make_node("Add", ["ao", "b"], ["y"])]
    return _model(nodes, (2, 24, 32), "y", (2, 24, 32), inits)


def _model(nodes: Any, shape: Any, out: str, result: Any, inits: dict[str, np.ndarray]) -> onnx.ModelProto:
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", shape), (out, result)))
    graph = helper.make_graph(nodes, "net", [x], [y], [numpy_helper.from_array(v, n) for n, v in inits.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


class _Batches:
    def __init__(self, shape: Any) -> None:
        self._left = iter([{"x": RNG.standard_normal(shape).astype(np.float32)} for _ in range(3)])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._left, None)


NETWORKS = {"residual": (_residual, (2, 3, 24, 24), 5), "attention": (_attention, (2, 24, 32), 6)}


@pytest.mark.parametrize("kind", ["QUInt8", "QInt8"])
@pytest.mark.parametrize("network", NETWORKS)
def test_network(network: str, kind: str, tmp_path: Any) -> None:
    """As near to the float64 evaluation of the quantised graph as ONNX Runtime is, or two steps of the result."""
    quantization = pytest.importorskip("onnxruntime.quantization")
    make, shape, products = NETWORKS[network]
    types = {"activation_type": quantization.QuantType[kind], "weight_type": quantization.QuantType.QInt8}
    source, target = tmp_path / "net.onnx", tmp_path / "quantized.onnx"
    onnx.save(make(), source)
    quantization.quantize_static(source, target, _Batches(shape), per_channel=True, **types)
    x = RNG.standard_normal(shape).astype(np.float32)
    graph = import_model(load(target))
    assert len(QuantizedProducts().run(graph.copy()).sites) == products
    ops.lower_all(graph)
    exact = interpret(graph, {graph.inputs[0]: x}, np.float64)[graph.outputs[0]]
    session = onnxruntime.InferenceSession(target, providers=["CPUExecutionProvider"])
    theirs = np.abs(session.run(None, {"x": x})[0] - exact).max()
    ours = np.abs(np.asarray(daceopt.from_onnx(target, recipe="cpu", fallback=False)(x)) - exact).max()
    assert ours <= max(theirs, 2 * np.ptp(exact) / 255)

"""Rules of :mod:`daceopt.capture.onnx.contributed` for operators over integers of 8 bits and less."""

from __future__ import annotations

import numpy as np
from onnx import helper

from daceopt.capture.onnx.contributed import FLOAT, Expansion, Refused, expands

_MOST = 1 << 29  # elements of a weight that is unpacked


def _real(e: Expansion, first: int) -> str:
    """The real numbers that the operand, scale and zero point from position ``first`` on stand for."""
    return e.op("DequantizeLinear", e.at(first), e.at(first + 1), e.at(first + 2))


def _store(e: Expansion, value: str, first: int) -> None:
    """The operator's result: ``value`` with the scale and zero point from position ``first`` on."""
    if not e.at(first + 1):
        raise Refused("the result's type follows from its zero point")
    e.op("QuantizeLinear", value, e.at(first), e.at(first + 1), out=e.node.output[0])


@expands("QLinearAdd", "QLinearMul")
def _pointwise_of_two(e: Expansion) -> None:
    _store(e, e.op(e.node.op_type.removeprefix("QLinear"), _real(e, 0), _real(e, 3)), 6)


@expands("QLinearSigmoid")
def _sigmoid(e: Expansion) -> None:
    _store(e, e.op("Sigmoid", _real(e, 0)), 3)


@expands("QLinearLeakyRelu")
def _leaky_relu(e: Expansion) -> None:
    _store(e, e.op("LeakyRelu", _real(e, 0), alpha=e.attribute("alpha", 0.01)), 3)


@expands("QLinearSoftmax")
def _softmax(e: Expansion) -> None:
    if (e.attribute("opset", e.opset) < 13) != (e.opset < 13):
        raise Refused("softmax of another opset than the model's")
    _store(e, e.op("Softmax", _real(e, 0), axis=e.attribute("axis", -1)), 3)


@expands("QLinearGlobalAveragePool", "QLinearAveragePool")
def _average(e: Expansion) -> None:
    if e.attribute("channels_last", 0):
        raise Refused("channels last")
    attributes = {k: v for k, v in e.attributes.items() if k != "channels_last"}
    _store(e, e.op(e.node.op_type.removeprefix("QLinear"), _real(e, 0), **attributes), 3)


@expands("QLinearConcat")
def _concatenation(e: Expansion) -> None:
    parts = [_real(e, k) for k in range(2, len(e.inputs), 3)]
    _store(e, e.op("Concat", *parts, axis=e.attribute("axis", 0)), 0)


@expands("QGemm")
def _gemm(e: Expansion) -> None:
    """alpha * scales * (A @ B + C) in integers, as a real number or quantized again."""
    factors = (("transA", 0), ("transB", 3))
    a, b = (e.op("Transpose", e.at(p), perm=[1, 0]) if e.attribute(flag, 0) else e.at(p) for flag, p in factors)
    total = e.op("MatMulInteger", a, b, e.at(2), e.at(5))
    total = e.op("Add", total, e.at(6)) if e.at(6) else total
    scale = e.op("Mul", e.op("Mul", e.at(1), e.at(4)), e.constant(e.attribute("alpha", 1.0)))
    value = e.op("Mul", e.op("Cast", total, to=FLOAT), scale)
    if e.at(7):
        _store(e, value, 7)
    else:
        e.result(value)


def _scale(e: Expansion, total: str, scale: str, bias: str) -> None:
    value = e.op("Mul", e.op("Cast", total, to=FLOAT), scale)
    e.result(e.op("Add", value, bias) if bias else value)


@expands("DynamicQuantizeMatMul")
def _dynamic_product(e: Expansion) -> None:
    narrow, scale, zero = e.several("DynamicQuantizeLinear", 3, e.at(0))
    total = e.op("MatMulInteger", narrow, e.at(1), zero, e.at(3))
    _scale(e, total, e.op("Mul", scale, e.at(2)), e.at(4))


@expands("MatMulIntegerToFloat")
def _scaled_product(e: Expansion) -> None:
    total = e.op("MatMulInteger", e.at(0), e.at(1), e.at(4), e.at(5))
    _scale(e, total, e.op("Mul", e.at(2), e.at(3)), e.at(6))


@expands("MatMulNBits")
def _packed_product(e: Expansion) -> None:
    """B is (columns, blocks of rows, bytes); each byte holds the lower rows in its lower bits."""
    rows, columns, bits = e.attribute("K", 0), e.attribute("N", 0), e.attribute("bits", 4)
    if e.at(4) or bits not in (2, 4, 8) or not 0 < rows * columns < _MOST:
        raise Refused("order of rows, or other widths")
    block = int(e.attribute("block_size", 32))
    blocks = -(-rows // block)
    steps = _unpack(e.value(e.at(1)), bits, (columns, blocks, block))
    scales = e.value(e.at(2)).reshape(columns, blocks, 1).astype(np.float32)
    weights = ((steps - _zeros(e, bits, columns, blocks)) * scales).reshape(columns, -1)[:, :rows]
    product = e.op("MatMul", e.at(0), e.constant(np.ascontiguousarray(weights.T)))
    e.result(e.op("Add", product, e.at(5)) if e.at(5) else product)


def _zeros(e: Expansion, bits: int, columns: int, blocks: int) -> np.ndarray:
    """Zero points by column and block: the middle of the range where none are given."""
    if not e.at(3):
        return np.full((columns, blocks, 1), 1 << (bits - 1), np.float32)
    zeros = e.value(e.at(3))
    if zeros.dtype != np.uint8:
        return zeros.reshape(columns, blocks, 1).astype(np.float32)
    return _unpack(zeros.reshape(columns, -1), bits, (columns, -1))[:, :blocks, None]


def _unpack(packed: np.ndarray, bits: int, shape: tuple[int, ...]) -> np.ndarray:
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    return ((packed[..., None] >> shifts) & ((1 << bits) - 1)).reshape(shape).astype(np.float32)


@expands("DynamicQuantizeLSTM")
def _lstm(e: Expansion) -> None:
    """With the weights that the integers stand for, (directions, data, gates); ONNX Runtime rounds data and states to 8
    bits before each product, which is left out: results are nearer to those of the network that was quantized."""
    weights = [_gates(e, position, scale) for position, scale in ((1, 8), (2, 10))]
    inputs = [e.at(0), *weights, *(e.at(k) for k in range(3, 8))]
    while inputs and not inputs[-1]:
        inputs.pop()
    e.nodes.append(helper.make_node("LSTM", inputs, list(e.node.output), e.node.name, **e.attributes))


def _gates(e: Expansion, position: int, scale: int) -> str:
    steps = e.value(e.at(position)).astype(np.float32)
    shape = (steps.shape[0], 1, -1)
    zero = e.value(e.at(scale + 1)).astype(np.float32).reshape(shape) if e.at(scale + 1) else 0.0
    weights = (steps - zero) * e.value(e.at(scale)).reshape(shape)
    return e.constant(np.ascontiguousarray(weights.transpose(0, 2, 1)))

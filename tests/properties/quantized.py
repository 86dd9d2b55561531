"""Quantization and products of integers; the narrow types."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st
from onnx import TensorProto

from tests.properties.cases import Case, Draw, array, axis_of, narrow_dtype, shapes

SIDE = st.integers(1, 5)
_EIGHT = st.sampled_from(["int8", "uint8"])
_FLOAT8 = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")


@st.composite
def quantization_of_blocks(draw: Draw) -> Case:
    """One scale for each block along an axis; and one for each place of an axis that counts from the end."""
    dtype = draw(st.sampled_from(["int8", "uint8", "int16", "uint16", "int4", "uint4"]))
    block, blocks = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    shape = (draw(SIDE), block * blocks, draw(SIDE))
    blocked = draw(st.booleans())
    scale = array(draw, (shape[0], blocks, shape[2]) if blocked else shape[1:2], "float32", 0.2, 0.6)
    low = 0 if dtype.startswith("u") else -1
    zero = array(draw, scale.shape, "int32", low / 5, 0.4).astype(narrow_dtype(dtype))
    attributes = {"axis": draw(st.sampled_from([1, -2])), **({"block_size": block} if blocked else {})}
    if draw(st.booleans()):
        return Case("QuantizeLinear", [array(draw, shape, "float32"), scale, zero], attributes, constants=(2,))
    x = array(draw, shape, "int32", low, 1.4).astype(narrow_dtype(dtype))
    return Case("DequantizeLinear", [x, scale, zero], attributes, constants=(0, 2))


@st.composite
def cast_to_narrow(draw: Draw) -> Case:
    """To 8 and 4 bits, of values that they do not hold exactly or that lie outside."""
    target = draw(st.sampled_from([*_FLOAT8, "bfloat16", "float16", "int4", "uint4"]))
    whole = "int" in target
    low, high = (0 if target == "uint4" else -8, 7) if whole else (-600.0, 600.0)
    x = array(draw, draw(shapes(0, 3)), "float32", low, high)
    x = np.asarray(np.where(np.arange(x.size).reshape(x.shape) % 2, x, x / (1 if whole else 500)), np.float32)
    element = int(getattr(TensorProto, {"float8_e4m3fn": "FLOAT8E4M3FN"}.get(target, _proto_name(target))))
    attributes = {"saturate": draw(st.integers(0, 1))} if target in _FLOAT8 else {}
    return Case("Cast", [x], {"to": element, **attributes})


def _proto_name(dtype: str) -> str:
    return dtype.replace("_", "").upper()


@st.composite
def quantization_to_float8(draw: Draw) -> Case:
    dtype = draw(st.sampled_from(_FLOAT8))
    x, scale = array(draw, draw(shapes(1, 3)), "float32", -90.0, 90.0), array(draw, (), "float32", 0.1, 2.0)
    zero = np.zeros((), narrow_dtype(dtype))
    if draw(st.booleans()):
        return Case("QuantizeLinear", [x, scale, zero], {"saturate": draw(st.integers(0, 1))}, constants=(2,))
    return Case("DequantizeLinear", [x.astype(zero.dtype), scale, zero], constants=(0, 2))


@st.composite
def dynamic_quantization(draw: Draw) -> Case:
    low = draw(st.sampled_from([-4.0, 0.0, 1.0]))
    return Case("DynamicQuantizeLinear", [array(draw, draw(shapes(0, 3, empty=False)), "float32", low)], outputs=3)


@st.composite
def matmul_integer(draw: Draw) -> Case:
    batch, (m, k, n) = draw(shapes(0, 2, empty=False)), (draw(SIDE) for _ in range(3))
    left, right = draw(_EIGHT), draw(_EIGHT)
    a, b = array(draw, (*batch, m, k), left, -20.0, 20.0), array(draw, (k, n), right, -20.0, 20.0)
    inputs: list[np.ndarray | None] = [a, b]
    if draw(st.booleans()):
        inputs += [array(draw, (), left), array(draw, draw(st.sampled_from([(), (n,)])), right)]
    return Case("MatMulInteger", inputs)


@st.composite
def convolution_integer(draw: Draw) -> Case:
    group, kernel = draw(st.integers(1, 2)), [draw(st.integers(1, 3)) for _ in range(2)]
    x = array(draw, (draw(SIDE), 2 * group, 5, draw(st.integers(3, 6))), "uint8", 0, 40.0)
    w = array(draw, (3 * group, 2, *kernel), draw(_EIGHT), -20.0, 20.0)
    inputs: list[np.ndarray | None] = [x, w]
    if draw(st.booleans()):
        inputs += [array(draw, (), "uint8"), array(draw, (), str(w.dtype))]
    pads = [draw(st.integers(0, k - 1)) for k in (*kernel, *kernel)]
    return Case("ConvInteger", inputs, {"pads": pads, "group": group, "strides": [draw(st.integers(1, 2)), 1]})


def _scale(draw: Draw, shape: tuple[int, ...] = ()) -> np.ndarray:
    return array(draw, shape, "float32", 0.03, 0.2)


@st.composite
def quantized_matmul(draw: Draw) -> Case:
    batch, (m, k, n) = draw(shapes(0, 2, empty=False)), (draw(SIDE) for _ in range(3))
    left = draw(_EIGHT)
    right = "int8" if left == "int8" else draw(_EIGHT)
    each = (n,) if draw(st.booleans()) else ()
    a, b = array(draw, (*batch, m, k), left, -20.0, 20.0), array(draw, (k, n), right, -20.0, 20.0)
    left_of, right_of = [_scale(draw), array(draw, (), left)], [_scale(draw, each), array(draw, each, right)]
    return Case("QLinearMatMul", [a, *left_of, b, *right_of, _scale(draw), array(draw, (), left)])


@st.composite
def quantized_convolution(draw: Draw) -> Case:
    kernel = [draw(st.integers(1, 3)) for _ in range(2)]
    each = (3,) if draw(st.booleans()) else ()
    x = array(draw, (draw(SIDE), 2, 5, draw(st.integers(3, 6))), "uint8", 0, 40.0)
    w = array(draw, (3, 2, *kernel), "int8", -20.0, 20.0)
    inputs: list[Any] = [x, _scale(draw), array(draw, (), "uint8"), w, _scale(draw, each), np.zeros(each, np.int8)]
    inputs += [_scale(draw), array(draw, (), "uint8")]
    if draw(st.booleans()):
        inputs.append(array(draw, (3,), "int32", -50.0, 50.0))
    pads = [draw(st.integers(0, k - 1)) for k in (*kernel, *kernel)]
    return Case("QLinearConv", inputs, {"pads": pads, "strides": [draw(st.integers(1, 2)), 1]})


# -------------------------------------------------------------------- half types

_HALF = st.sampled_from(["float16", "bfloat16"])
_POINTWISE = """Abs Neg Exp Sin Cos Tanh Erf Sigmoid Relu Elu Selu LeakyRelu Softplus Softsign HardSigmoid HardSwish
    Gelu Floor Ceil Round Sign Reciprocal Sqrt Log"""


@st.composite
def half_pointwise(draw: Draw) -> Case:
    if draw(st.booleans()):
        op = draw(st.sampled_from(_POINTWISE.split()))
        x = array(draw, draw(shapes(1)), "float32", 0.25 if op in ("Reciprocal", "Sqrt", "Log") else -3.0, 3.0)
        return Case(op, [x], narrow=draw(_HALF), opset=22)
    op, shape = draw(st.sampled_from(["Add", "Sub", "Mul", "Div", "Max", "Min", "Less", "Greater"])), draw(shapes())
    operands: list[np.ndarray | None] = [array(draw, shape, "float32", 0.5, 3.0) for _ in range(2)]
    return Case(op, operands, narrow=draw(_HALF), opset=22)


@st.composite
def half_product(draw: Draw) -> Case:
    m, k, n = draw(SIDE), draw(st.integers(1, 40)), draw(SIDE)
    a, b, c = (array(draw, s, "float32", -1, 1) for s in ((m, k), (k, n), (n,)))
    op, operands = draw(st.sampled_from([("MatMul", [a, b]), ("Gemm", [a, b, c])]))
    return Case(op, operands, narrow=draw(_HALF), opset=22)


@st.composite
def half_normalization(draw: Draw) -> Case:
    op = draw(st.sampled_from(["Softmax", "LogSoftmax", "LayerNormalization", "InstanceNormalization"]))
    x = array(draw, draw(shapes(3, 4, empty=False)), "float32")
    if "max" in op:
        return Case(op, [x], {"axis": axis_of(draw, x.ndim)}, narrow=draw(_HALF), opset=22)
    place = -1 if op.startswith("Layer") else 1
    scale, bias = (array(draw, (x.shape[place],), "float32", 0.5, 2.0) for _ in range(2))
    return Case(op, [x, scale, bias], narrow=draw(_HALF), opset=22)


@st.composite
def half_reduction(draw: Draw) -> Case:
    op = draw(st.sampled_from(["ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceL2", "ReduceLogSumExp"]))
    x = array(draw, draw(shapes(1, 4, empty=False)), "float32")
    axes = np.asarray([axis_of(draw, x.ndim)])
    return Case(op, [x, axes], {"keepdims": draw(st.integers(0, 1))}, constants=(1,), narrow=draw(_HALF), opset=22)

"""Products, convolutions, pools, normalizations, resizing, quantization."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.properties.cases import Case, Draw, array, shapes

SIDE = st.integers(1, 5)


@st.composite
def matmul(draw: Draw) -> Case:
    batch = draw(shapes(0, 2))
    m, k, n = (draw(SIDE) for _ in range(3))
    dtype = draw(st.sampled_from(["float32", "float64", "int32"]))
    left = (*batch, m, k) if draw(st.booleans()) else (k,)
    right = (*(1 if draw(st.booleans()) else b for b in batch), k, n) if draw(st.booleans()) else (k, n)
    return Case("MatMul", [array(draw, left, dtype), array(draw, right, dtype)])


@st.composite
def gemm(draw: Draw) -> Case:
    m, k, n = (draw(SIDE) for _ in range(3))
    flags = {"transA": draw(st.integers(0, 1)), "transB": draw(st.integers(0, 1))}
    a = array(draw, (k, m) if flags["transA"] else (m, k), "float32")
    b = array(draw, (n, k) if flags["transB"] else (k, n), "float32")
    c = array(draw, draw(st.sampled_from([(n,), (1, n), (m, 1), (m, n), (1,), ()])), "float32")
    factors = {"alpha": draw(st.sampled_from([1.0, 0.5])), "beta": draw(st.sampled_from([1.0, 2.0]))}
    return Case("Gemm", [a, b, c] if draw(st.booleans()) else [a, b], {**flags, **factors})


def _window(draw: Draw, rank: int, kernel: list[int], dilated: bool) -> dict[str, Any]:
    window: dict[str, Any] = {"kernel_shape": kernel, "strides": [draw(st.integers(1, 2)) for _ in range(rank)]}
    if dilated:
        window["dilations"] = [draw(st.integers(1, 2)) for _ in range(rank)]
    padding = draw(st.sampled_from(["", "VALID", "SAME_UPPER", "SAME_LOWER"]))
    if padding:
        window["auto_pad"] = padding
    else:
        window["pads"] = [draw(st.integers(0, (k - 1) // 2 + (k > 1))) for k in (*kernel, *kernel)]
        window["pads"] = [min(p, k - 1) for p, k in zip(window["pads"], (*kernel, *kernel))]
    return window


@st.composite
def convolution(draw: Draw) -> Case:
    rank, group = draw(st.integers(1, 3)), draw(st.sampled_from([1, 1, 2]))
    kernel = [draw(st.integers(1, 3)) for _ in range(rank)]
    image = tuple(draw(st.integers(5, 8)) for _ in range(rank))
    window = _window(draw, rank, kernel, dilated=True)
    if "SAME" in window.get("auto_pad", ""):
        window["dilations"] = [1] * rank  # ONNX Runtime and the standard differ here
    x = array(draw, (draw(st.integers(1, 2)), 2 * group, *image), "float32")
    if draw(st.booleans()):
        inputs: list[np.ndarray | None] = [x, array(draw, (3 * group, 2, *kernel), "float32")]
        bias = array(draw, (3 * group,), "float32")
        return Case("Conv", [*inputs, bias] if draw(st.booleans()) else inputs, {**window, "group": group})
    inputs = [x, array(draw, (2 * group, 3, *kernel), "float32")]
    window.pop("auto_pad", None)
    return Case("ConvTranspose", inputs, {**window, "group": group})


@st.composite
def pool(draw: Draw) -> Case:
    rank = draw(st.integers(1, 3))
    kernel = [draw(st.integers(1, 3)) for _ in range(rank)]
    op = draw(st.sampled_from(["MaxPool", "AveragePool", "LpPool", "GlobalAveragePool", "GlobalMaxPool"]))
    x = array(draw, (1, 2, *(draw(st.integers(4, 7)) for _ in range(rank))), "float32")
    if op.startswith("Global"):
        return Case(op, [x])
    attributes = _window(draw, rank, kernel, dilated=op == "MaxPool")
    if op == "AveragePool":
        attributes["count_include_pad"] = draw(st.integers(0, 1))
    if "SAME" in attributes.get("auto_pad", ""):
        attributes.pop("dilations", None)
        strides = zip(attributes["strides"], kernel)
        attributes["strides"] = [min(s, k) for s, k in strides]  # longer ones would ask for negative padding
    return Case(op, [x], attributes)


@st.composite
def normalization(draw: Draw) -> Case:
    op = f"{draw(st.sampled_from(['Batch', 'Instance', 'Layer', 'Group']))}Normalization"
    x = array(draw, (draw(SIDE), 4, *draw(shapes(1, 2, empty=False))), "float32")
    if op == "LayerNormalization":
        axis = draw(st.integers(1, x.ndim - 1))
        scale, bias = (array(draw, x.shape[axis:], "float32") for _ in range(2))
        return Case(op, [x, scale, bias], {"axis": axis})
    scale, bias, mean = (array(draw, (4,), "float32") for _ in range(3))
    if op == "BatchNormalization":
        return Case(op, [x, scale, bias, mean, array(draw, (4,), "float32", 0.5, 2.0)])
    return Case(op, [x, scale, bias], {"num_groups": draw(st.sampled_from([1, 2, 4]))} if "Group" in op else {})


@st.composite
def resize(draw: Draw) -> Case:
    x = array(draw, (1, 2, draw(st.integers(2, 6)), draw(st.integers(2, 6))), "float32")
    mode = draw(st.sampled_from(["nearest", "linear", "cubic"]))
    where = draw(st.sampled_from(["half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel"]))
    attributes: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": where}
    if mode == "nearest":
        attributes["nearest_mode"] = draw(st.sampled_from(["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]))
    sizes = np.asarray([1, 2, draw(st.integers(2, 9)), draw(st.integers(2, 9))], np.int64)
    return Case("Resize", [x, None, None, sizes], attributes, constants=(3,))


@st.composite
def quantization(draw: Draw) -> Case:
    dtype = draw(st.sampled_from(["int8", "uint8"]))
    x = array(draw, (draw(SIDE), 4, draw(SIDE)), "float32")
    per_axis = draw(st.booleans())
    scale = array(draw, (4,) if per_axis else (), "float32", 0.03, 0.2)
    zero = array(draw, (4,) if per_axis else (), dtype, -0.5, 0.5)
    if draw(st.booleans()):
        return Case("QuantizeLinear", [x, scale, zero], {"axis": 1})
    return Case("DequantizeLinear", [array(draw, x.shape, dtype), scale, zero], {"axis": 1})


@st.composite
def einsum(draw: Draw) -> Case:
    sizes = {c: draw(SIDE) for c in "bijk"}
    several = ["ij,jk->ik", "bij,bjk->bik", "ij,kj->ik", "i,j->ij", "ij->ji", "bij,bkj->bik", "ij,ij->", "ij->i"]
    equation = draw(st.sampled_from(several))
    operands = [array(draw, tuple(sizes[c] for c in term), "float32") for term in equation.split("->")[0].split(",")]
    return Case("Einsum", list(operands), {"equation": equation})

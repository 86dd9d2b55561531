"""Operators of ``com.microsoft`` have native forms, which compute what ONNX Runtime computes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from daceopt import ops
from daceopt.capture.onnx.file import load
from daceopt.capture.onnx.importer import import_model
from daceopt.ir.interpreter.interpret import interpret
from tests.numerics import assert_within_rounding

draw = np.random.default_rng(0)
BYTE = (np.uint8,)
S, Z, Z8 = np.float32(0.05), np.uint8(120), np.int8(3)


def normal(*shape: int) -> np.ndarray:
    return draw.standard_normal(shape).astype(np.float32)


def steps(*shape: int, dtype: Any = np.uint8) -> np.ndarray:
    limits = np.iinfo(dtype)
    return draw.integers(limits.min, limits.max, shape, endpoint=True).astype(dtype)


def case(
    op_type: str, inputs: Sequence[Any], data: Sequence[int] = (0,), results: Sequence[Any] = (np.float32,),
    opset: int = 17, **attributes: Any,
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:  # fmt: skip
    """A model of one operator: inputs at the positions ``data`` are of a call, others are constants."""
    names = ["" if v is None else f"x{k}" for k, v in enumerate(inputs)]
    made = [f"y{k}" for k in range(len(results))]
    node = helper.make_node(op_type, names, made, op_type, domain="com.microsoft", **attributes)
    feeds = {names[k]: np.asarray(inputs[k]) for k in data}
    values = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape) for n, v in feeds.items()
    ]
    fixed = [(n, v) for n, v in zip(names, inputs) if n and n not in feeds]
    stored = [numpy_helper.from_array(np.asarray(v), n) for n, v in fixed]
    kinds = [helper.np_dtype_to_tensor_dtype(np.dtype(t)) for t in results]
    outputs = [helper.make_tensor_value_info(n, k, None) for n, k in zip(made, kinds, strict=True)]
    graph = helper.make_graph([node], "g", values, outputs, stored)
    versions = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=versions, ir_version=8), feeds


EXACT = {
    "FusedMatMul": case("FusedMatMul", [normal(2, 4, 3), normal(2, 5, 3)], (0, 1), alpha=0.5, transB=1),
    "FusedMatMul, turned": case("FusedMatMul", [normal(3, 4), normal(3, 5)], transA=1),
    "Gelu": case("Gelu", [normal(3, 7)]),
    "BiasGelu": case("BiasGelu", [normal(3, 7), normal(7)]),
    "FastGelu": case("FastGelu", [normal(3, 7), normal(7)]),
    "QuickGelu": case("QuickGelu", [normal(3, 7)], alpha=1.5),
    "SkipLayerNormalization": case(
        "SkipLayerNormalization", [normal(2, 3, 8), normal(2, 3, 8), normal(8), normal(8), normal(8)], (0, 1)
    ),
    "SkipLayerNormalization, old": case(
        "SkipLayerNormalization", [normal(2, 3, 8), normal(2, 3, 8), normal(8)], (0, 1), opset=13, epsilon=1e-5
    ),
    "SkipSimplifiedLayerNormalization": case(
        "SkipSimplifiedLayerNormalization", [normal(2, 3, 8), normal(2, 3, 8), normal(8), normal(8)], (0, 1)
    ),
    "Attention": case("Attention", [normal(2, 5, 8), normal(8, 24), normal(24)], num_heads=2),
    "Attention, mask": case(
        "Attention", [normal(2, 5, 8), normal(8, 24), normal(24), steps(2, 5, dtype=np.int32) % 2], (0, 3), num_heads=4
    ),
    "EmbedLayerNormalization": case(
        "EmbedLayerNormalization",
        [steps(2, 5, dtype=np.int32) % 9, steps(2, 5, dtype=np.int32) % 2, normal(9, 8), normal(6, 8), normal(2, 8),
         normal(8), normal(8), steps(2, 5, dtype=np.int32) % 2], (0, 1, 7), (np.float32, np.int32),
    ),
    "MatMulNBits": case(
        "MatMulNBits", [normal(3, 40), steps(6, 3, 8), np.abs(normal(18))], K=40, N=6, bits=4, block_size=16
    ),
    "MatMulNBits, zero points": case(
        "MatMulNBits", [normal(3, 40), steps(6, 3, 8), np.abs(normal(18)), steps(12)], K=40, N=6, bits=4, block_size=16
    ),
    "MatMulIntegerToFloat": case(
        "MatMulIntegerToFloat", [steps(3, 8), steps(8, 4), S, S, Z, Z, normal(4)]
    ),
    "DynamicQuantizeMatMul": case("DynamicQuantizeMatMul", [normal(3, 8), steps(8, 4), S, Z, normal(4)]),
    "DynamicQuantizeMatMul, columns": case(
        "DynamicQuantizeMatMul", [normal(3, 8), steps(8, 4, dtype=np.int8), np.abs(normal(4)), steps(4, dtype=np.int8)]
    ),
    "QGemm, real": case("QGemm", [steps(3, 8), S, Z, steps(4, 8), S, Z, steps(4, dtype=np.int32) // 2**22], transB=1),
}  # fmt: skip
QUANTIZED = {
    "QLinearAdd": case("QLinearAdd", [steps(2, 3, 4), S, Z, steps(3, 4), S, Z, S, Z], (0, 3), BYTE),
    "QLinearMul": case(
        "QLinearMul", [steps(2, 3, 4, dtype=np.int8), S, Z8, steps(4, dtype=np.int8), S, Z8, S, Z8], (0, 3), (np.int8,)
    ),
    "QLinearSigmoid": case("QLinearSigmoid", [steps(3, 9), S, Z, np.float32(1 / 256), np.uint8(0)], (0,), BYTE),
    "QLinearLeakyRelu": case("QLinearLeakyRelu", [steps(3, 9), S, Z, S, Z], (0,), BYTE, alpha=0.1),
    "QLinearGlobalAveragePool": case("QLinearGlobalAveragePool", [steps(2, 3, 4, 5), S, Z, S, Z], (0,), BYTE),
    "QLinearAveragePool": case(
        "QLinearAveragePool", [steps(2, 3, 4, 6), S, Z, S, Z], (0,), BYTE, kernel_shape=[2, 2], strides=[2, 2]
    ),
    "QLinearConcat": case(
        "QLinearConcat", [S, Z, steps(2, 3), S, Z, steps(2, 4), np.float32(0.03), Z], (2, 5), BYTE, axis=1
    ),
    "QGemm": case("QGemm", [steps(3, 8), S, Z, steps(8, 4), S, Z, None, np.float32(0.5), Z], (0,), BYTE),
}  # fmt: skip


def _run(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> tuple[list[Any], list[Any], list[Any]]:
    """Ours, in float64, and ONNX Runtime's."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    theirs = onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, feeds)
    graph = import_model(load(model))
    named = dict(zip(graph.inputs, feeds.values(), strict=True))
    ops.lower_all(graph)
    found, exact = (interpret(graph, named, dtype) for dtype in (None, np.float64))
    return [found[n] for n in graph.outputs], [exact[n] for n in graph.outputs], theirs


@pytest.mark.parametrize("name", EXACT)
def test_real_results(name: str) -> None:
    for ours, exact, theirs in zip(*_run(*EXACT[name]), strict=True):
        assert_within_rounding(ours, exact, theirs)
        assert_within_rounding(theirs, exact, ours, ulps=64)


@pytest.mark.parametrize("name", QUANTIZED)
def test_quantized_results(name: str) -> None:
    """A tie may be rounded either way, which is one step."""
    for ours, _, theirs in zip(*_run(*QUANTIZED[name]), strict=True):
        apart = np.abs(ours.astype(np.int64) - theirs.astype(np.int64))
        assert ours.dtype == theirs.dtype and apart.max() <= 1 and (apart > 0).mean() < 0.05


@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("per_gate", [False, True])
def test_quantized_weights_of_a_recurrent_layer(directions: int, per_gate: bool) -> None:
    """Beside ONNX Runtime, which rounds data and states to 8 bits as well."""
    hidden, size, kind = 8, 6, "bidirectional" if directions == 2 else "forward"
    scale = [np.full((directions, 4 * hidden) if per_gate else (directions,), 0.004, np.float32)] * 2
    zero = [np.zeros_like(scale[0], np.int8)] * 2
    x, bias = normal(5, 3, size), normal(directions, 8 * hidden)
    w, r = (steps(directions, rows, 4 * hidden, dtype=np.int8) for rows in (size, hidden))
    inputs = [x, w, r, bias, None, None, None, None, scale[0], zero[0], scale[1], zero[1]]
    model, feeds = case("DynamicQuantizeLSTM", inputs, results=[np.float32] * 3, hidden_size=hidden, direction=kind)
    for ours, exact, theirs in zip(*_run(model, feeds), strict=True):
        assert_within_rounding(ours, exact)
        assert np.abs(theirs - exact).max() < 0.03


def test_what_no_rule_takes_stays() -> None:
    model, _ = case("Attention", [normal(2, 5, 8), normal(8, 24), normal(24)], num_heads=2, unidirectional=1)
    assert [n.op_type for n in load(model).graph.node] == ["Attention"]

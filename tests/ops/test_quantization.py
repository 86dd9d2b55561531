"""Quantisation against the standard's evaluator and ONNX Runtime: integers and narrow floats come out bit for bit."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnxruntime
import pytest
from onnx import helper

from daceopt import ops
from daceopt.ir.interpreter.interpret import interpret
from tests.ops.compiled import compiled
from tests.ops.single import lowered, reference, single

RNG = np.random.default_rng(11)
X = (RNG.normal(size=(3, 4, 6)) * 300).astype(np.float32)
INTEGERS = [np.uint8, np.int8, np.uint16, np.int16, ml_dtypes.uint4, ml_dtypes.int4, ml_dtypes.uint2, ml_dtypes.int2]
FLOATS = [ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e4m3fnuz, ml_dtypes.float8_e5m2, ml_dtypes.float8_e5m2fnuz]
BLOCKS = {"tensor": ((), {}), "axis": ((4,), {"axis": 1}), "last": ((6,), {"axis": -1})} | {
    f"blocks of {size}": ((3, 4, count), {"axis": 2, "block_size": size}) for size, count in ((2, 3), (3, 2), (4, 2))
}


def executed(op_type: str, inputs: list[Any], like: list[Any] | None = None, **options: Any) -> np.ndarray:
    """The interpreted result; the compiled one is the same."""
    graph, feeds = single(op_type, inputs, like=like, **options)
    return interpret(lowered(graph), feeds)[graph.outputs[0]]


def runtime(op_type: str, inputs: list[np.ndarray], opset: int = 21, **attributes: Any) -> np.ndarray:
    """ONNX Runtime's result."""
    names = [f"x{k}" for k in range(len(inputs))]
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
        for n, v in zip(names, inputs)
    ]
    body = helper.make_graph(
        [helper.make_node(op_type, names, ["y"], **attributes)],
        "peer",
        infos,
        [helper.make_empty_tensor_value_info("y")],
    )
    model = helper.make_model(body, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, dict(zip(names, inputs)))[0]


def same(found: np.ndarray, wanted: np.ndarray) -> None:
    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(found.astype(np.float32), wanted.astype(np.float32))


def parameters(kind: str, dtype: Any) -> tuple[np.ndarray, np.ndarray, dict[str, int]]:
    shape, attributes = BLOCKS[kind]
    limits = ml_dtypes.iinfo(dtype) if dtype in INTEGERS else None
    zero = RNG.integers(limits.min, limits.max, shape, endpoint=True) if limits else np.zeros(shape)
    return RNG.uniform(0.5, 9, shape).astype(np.float32), np.asarray(zero).astype(dtype), attributes


@pytest.mark.parametrize("kind", BLOCKS)
@pytest.mark.parametrize("dtype", INTEGERS + FLOATS, ids=lambda t: t.__name__)
def test_quantize(dtype: Any, kind: str) -> None:
    scale, zero, attributes = parameters(kind, dtype)
    same(
        executed("QuantizeLinear", [X, scale, zero], opset=25, **attributes),
        reference("QuantizeLinear", [X, scale, zero], 1, 25, **attributes)[0],
    )


@pytest.mark.parametrize("kind", BLOCKS)
@pytest.mark.parametrize("dtype", INTEGERS + FLOATS, ids=lambda t: t.__name__)
def test_dequantize(dtype: Any, kind: str) -> None:
    scale, zero, attributes = parameters(kind, dtype)
    x = X.astype(np.int64).astype(dtype) if dtype in INTEGERS else np.clip(X / 2, -200, 200).astype(dtype)
    same(
        executed("DequantizeLinear", [x, scale, zero], opset=25, **attributes),
        reference("DequantizeLinear", [x, scale, zero], 1, 25, **attributes)[0],
    )


def test_dequantize_of_32_bits() -> None:
    x, scale = np.array([2**31 - 1, -(2**31), 5], np.int32), np.float32(0.25).reshape(())
    same(executed("DequantizeLinear", [x, scale]), x.astype(np.float32) * scale)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_ties_infinities_and_nan_as_onnx_runtime(dtype: Any) -> None:
    ties = np.arange(-300, 300, dtype=np.float32) / 2
    x = np.concatenate([ties * np.float32(0.1), [np.inf, -np.inf, np.nan, 3e38, -3e38]]).astype(np.float32)
    inputs = [x, np.array(0.1, np.float32), np.array(3, dtype)]
    wanted = runtime("QuantizeLinear", inputs)
    same(executed("QuantizeLinear", inputs, opset=21), wanted)
    same(compiled("QuantizeLinear", inputs, opset=21)[0], wanted)
    same(compiled("QuantizeLinear", inputs, constants=(1, 2), opset=21)[0], wanted)


@pytest.mark.parametrize("saturate", [0, 1])
@pytest.mark.parametrize("dtype", FLOATS, ids=lambda t: t.__name__)
def test_small_floats_overflow(dtype: Any, saturate: int) -> None:
    inputs = [np.array([1e6, -1e6, np.inf, np.nan, 3.3], np.float32), np.float32(2).reshape(()), np.zeros((), dtype)]
    with np.errstate(all="ignore"):
        wanted = reference("QuantizeLinear", inputs, 1, 21, saturate=saturate)[0]
    same(executed("QuantizeLinear", inputs, [wanted], opset=21, saturate=saturate), wanted)


def test_division_in_the_precision_asked_for() -> None:
    x, scale = np.array([2049, 1.3], np.float32), np.ones((), np.float32)
    inputs, options = [x, scale, np.zeros((), np.int16)], {"opset": 23, "precision": 10}
    np.testing.assert_array_equal(executed("QuantizeLinear", inputs, **options), [2048, 1])


@pytest.mark.parametrize("case", ["plain", "zero", "positive", "negative"])
def test_dynamic(case: str) -> None:
    x = {"plain": X, "zero": np.zeros((2, 2), np.float32), "positive": np.abs(X), "negative": -np.abs(X)}[case]
    graph, feeds = single("DynamicQuantizeLinear", [x], 3)
    done = interpret(lowered(graph), feeds)
    y, scale, zero = (done[n] for n in graph.outputs)
    span = np.float32(max(x.max(), 0)) - np.float32(min(x.min(), 0))
    want_scale = np.float32(1 if case == "zero" else span / np.float32(255))
    assert scale == want_scale
    same(y, runtime("QuantizeLinear", [x, scale, zero]))
    for ours, peer in zip(compiled("DynamicQuantizeLinear", [x], 3), (y, scale, zero)):
        same(ours, peer)


@pytest.mark.parametrize(
    "shapes",
    [((3, 5), (5, 4)), ((2, 3, 5), (5, 4)), ((2, 3, 300), (2, 300, 4)), ((5,), (5, 4)), ((3, 5), (5,))],
    ids=str,
)
@pytest.mark.parametrize("types", [(np.uint8, np.int8), (np.int8, np.int8), (np.uint8, np.uint8)])
def test_integer_products(shapes: tuple[tuple[int, ...], ...], types: tuple[Any, Any]) -> None:
    a, b = (RNG.integers(np.iinfo(t).min, np.iinfo(t).max, s, t, endpoint=True) for s, t in zip(shapes, types))
    zeros = [np.array(7, types[0]), np.array(100, types[1])]
    wanted = np.matmul(a.astype(np.int32) - 7, b.astype(np.int32) - 100)
    same(executed("MatMulInteger", [a, b, *zeros], [wanted]), wanted)
    same(
        executed("MatMulInteger", [a, b, None, zeros[1]], [wanted]),
        np.matmul(a.astype(np.int32), b.astype(np.int32) - 100),
    )


def test_zero_points_of_rows_and_columns() -> None:
    a, b = RNG.integers(0, 255, (3, 5), np.uint8), RNG.integers(0, 255, (5, 4), np.uint8)
    rows, columns = np.array([1, 2, 250], np.uint8), np.array([9, 0, 4, 255], np.uint8)
    wanted = np.matmul(a.astype(np.int32) - rows[:, None], b.astype(np.int32) - columns)
    same(executed("MatMulInteger", [a, b, rows, columns], [wanted]), wanted)
    same(compiled("MatMulInteger", [a, b, rows, columns])[0], wanted)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("per_column", [False, True])
def test_quantized_products(dtype: Any, per_column: bool) -> None:
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    a, b = (RNG.integers(low, high, s, dtype, endpoint=True) for s in ((2, 3, 40), (2, 40, 4)))
    scale_b = RNG.uniform(0.01, 0.1, (2, 1, 4)) if per_column else np.array(0.03)
    zero_b = RNG.integers(low, high, (2, 1, 4)) if per_column else np.array(5)
    inputs = [
        a,
        np.array(0.02, np.float32),
        np.array(9, dtype),
        b,
        scale_b.astype(np.float32),
        zero_b.astype(dtype),
        np.array(0.7, np.float32),
        np.array(-3 if low else 3, dtype),
    ]
    wanted = runtime("QLinearMatMul", inputs)
    same(executed("QLinearMatMul", inputs, [wanted]), wanted)
    same(compiled("QLinearMatMul", inputs)[0], wanted)


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("options", [{}, {"pads": [1, 1, 1, 1], "strides": [2, 1]}, {"group": 2}], ids=str)
def test_quantized_convolution(options: dict[str, Any], per_channel: bool) -> None:
    x = RNG.integers(0, 255, (2, 4, 7, 6), np.uint8)
    w = RNG.integers(0, 255, (6, 4 // options.get("group", 1), 3, 3), np.uint8)
    scale_w = RNG.uniform(0.01, 0.1, 6).astype(np.float32) if per_channel else np.array(0.04, np.float32)
    zero_w = np.full(6 if per_channel else (), 120, np.uint8)
    bias = RNG.integers(-3000, 3000, 6).astype(np.int32)
    inputs = [
        x,
        np.array(0.05, np.float32),
        np.array(128, np.uint8),
        w,
        scale_w,
        zero_w,
        np.array(1.5, np.float32),
        np.array(100, np.uint8),
        bias,
    ]
    wanted = runtime("QLinearConv", inputs, **options)
    same(executed("QLinearConv", inputs, [wanted], **options), wanted)
    if not per_channel:
        same(compiled("QLinearConv", inputs, **options)[0], wanted)


def test_compiled_blocks_and_narrow_results() -> None:
    for kind, dtype in (("blocks of 4", ml_dtypes.int4), ("axis", ml_dtypes.float8_e4m3fn)):
        scale, zero, attributes = parameters(kind, dtype)
        (y,) = compiled("QuantizeLinear", [X, scale, zero], opset=25, **attributes)
        same(y, reference("QuantizeLinear", [X, scale, zero], 1, 25, **attributes)[0])
        (x,) = compiled("DequantizeLinear", [y, scale, zero], opset=25, **attributes)
        same(x, reference("DequantizeLinear", [y, scale, zero], 1, 25, **attributes)[0])


def test_shapes_that_do_not_fit_say_why() -> None:
    like = [np.zeros((3, 4, 6), np.uint8)]
    graph, _ = single("QuantizeLinear", [X, np.ones(3, np.float32)], like=like)
    assert "a scale of shape (3,) for (3, 4, 6), axis 1; expected (4,)" in str(
        ops.why_unsupported(graph, graph.operators()[0])
    )


@pytest.mark.parametrize("kept", [0, 1, 2])
def test_dynamic_results_that_nobody_reads(kept: int) -> None:
    graph, feeds = single("DynamicQuantizeLinear", [X], 3)
    wanted = interpret(lowered(graph), feeds)
    graph.outputs[:] = [graph.outputs[kept]]
    graph.prune()
    found = interpret(lowered(graph), feeds)
    same(found[graph.outputs[0]], wanted[graph.outputs[0]])

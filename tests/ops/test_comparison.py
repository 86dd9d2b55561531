"""Comparisons, logic and bits, of every type; variadic extrema, sums and means."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from daceopt import ops
from daceopt.ir.scalar import types
from tests.ops.compiled import compiled
from tests.ops.single import check, reference, single

SIGNED = ["int8", "int16", "int32", "int64"]
UNSIGNED = ["uint8", "uint16", "uint32", "uint64"]
FLOATS = ["float32", "float64"]
COMPARISONS = ["Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"]


def pair(dtype: str) -> list[np.ndarray]:
    """Operands that broadcast, with equal elements, extremes of the type, and NaN."""
    info: Any = np.finfo(dtype) if dtype in FLOATS else np.iinfo(dtype)
    a = np.array([[info.min, info.max, 1, 2], [3, 0, info.max, info.min]], dtype)
    b = np.array([info.max, info.max, 1, 3], dtype)
    if dtype in FLOATS:
        a[1, 1], b[2], a[0, 3] = np.nan, np.nan, np.inf
    return [a, b]


@pytest.mark.parametrize("op_type", COMPARISONS)
@pytest.mark.parametrize("dtype", FLOATS + SIGNED + UNSIGNED)
def test_comparisons(op_type: str, dtype: str) -> None:
    check(op_type, pair(dtype))
    check(op_type, pair(dtype), constants=[1])
    check(op_type, [pair(dtype)[0], np.array(1, dtype)], constants=[1])


@pytest.mark.parametrize("op_type", ["Equal", "And", "Or", "Xor"])
def test_of_bool(op_type: str) -> None:
    check(op_type, [np.array([True, True, False, False]), np.array([True, False, True, False])])
    check(op_type, [np.array([True, False]), np.array(True)], constants=[1])


def test_nan_is_not_itself() -> None:
    x = np.array([1, np.nan], np.float32)
    for op_type in COMPARISONS:
        (ours,) = compiled(op_type, [x, x])
        np.testing.assert_array_equal(ours, reference(op_type, [x, x], 1, 23)[0])


@pytest.mark.parametrize("dtype", SIGNED + UNSIGNED)
@pytest.mark.parametrize("op_type", ["BitwiseAnd", "BitwiseOr", "BitwiseXor"])
def test_bitwise(op_type: str, dtype: str) -> None:
    check(op_type, pair(dtype))
    check(op_type, [pair(dtype)[0], np.array(5, dtype)], constants=[1])


@pytest.mark.parametrize("dtype", SIGNED + UNSIGNED)
def test_bitwise_not(dtype: str) -> None:
    check("BitwiseNot", pair(dtype)[:1])


@pytest.mark.parametrize("dtype", SIGNED + UNSIGNED)
@pytest.mark.parametrize("direction", ["LEFT", "RIGHT"])
def test_bit_shift(dtype: str, direction: str) -> None:
    x = np.array([1, 5, np.iinfo(dtype).max, np.iinfo(dtype).min], dtype)
    width = 8 * x.itemsize
    shifts = [0, 1, width - 1, width, 3] + ([-1, -width] if dtype in SIGNED else [])
    for shift in shifts:
        check("BitShift", [x, np.array(shift, dtype)], opset=28, direction=direction)
    (ours,) = compiled("BitShift", [x, np.full(4, width, dtype)], opset=28, direction=direction)
    filled = np.where(x < 0, -1, 0) if direction == "RIGHT" else np.zeros(4)
    np.testing.assert_array_equal(ours, filled.astype(dtype))


@pytest.mark.parametrize(
    "source, target",
    [("float32", "int32"), ("int64", "float64"), ("bool", "uint8"), ("int16", "float16"), ("int32", "int32")],
)
def test_bit_cast(source: str, target: str) -> None:
    x = np.array([0, 1, 1, 0, 1]).astype(source)
    (ours,) = compiled("BitCast", [x], opset=26, to=types.to_onnx(types.from_name(target)))
    assert ours.dtype == target
    np.testing.assert_array_equal(ours, x.view(target))


def test_bit_cast_of_other_widths() -> None:
    for source, target in ((np.int32, np.int64), (np.int8, ml_dtypes.int4)):
        graph, _ = single("BitCast", [np.zeros(3, source)], like=[np.zeros(3, target)], opset=26, to=1)
        assert "whole number of bytes" in str(ops.why_unsupported(graph, graph.operators()[0]))


@pytest.mark.parametrize("op_type", ["Max", "Min"])
@pytest.mark.parametrize("dtype", FLOATS + SIGNED + UNSIGNED)
def test_extrema(op_type: str, dtype: str) -> None:
    a, b = pair(dtype)
    check(op_type, [a, b, np.array([[2], [1]], dtype)])
    check(op_type, [a])
    check(op_type, [a, np.array(1, dtype)], constants=[1])


@pytest.mark.parametrize("op_type", ["Sum", "Mean"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_sums(op_type: str, dtype: str) -> None:
    a, b = (np.random.default_rng(k).standard_normal((2, 4)[k:]).astype(dtype) for k in (0, 1))
    check(op_type, [a, b, np.array([[2], [1]], dtype)])
    check(op_type, [a])
    check(op_type, [a, a, a])


def test_infinities_by_sign() -> None:
    x = np.array([np.inf, -np.inf, np.nan, 1.0], np.float32)
    for attributes in (
        {},
        {"detect_positive": 0},
        {"detect_negative": 0},
        {"detect_positive": 0, "detect_negative": 0},
    ):
        check("IsInf", [x], **attributes)
        check("IsInf", [x.astype(np.float64)], **attributes)
    check("IsNaN", [x])
    check("IsNaN", [x.astype(np.float64)])

"""Point-wise operators: every type, special values, broadcasting, empty and zero-dimensional arrays."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from daceopt.ir.interpreter.interpret import interpret
from tests.ops.single import check, lowered, single

FLOATS = ("float32", "float64")
INTEGERS = ("int8", "int32", "int64", "uint8")
NUMBERS = FLOATS + INTEGERS
SMOOTH = """
    Exp Sin Cos Tan Sinh Cosh Tanh Asin Acos Atan Asinh Acosh Atanh Erf Log Sqrt Floor Ceil Round Reciprocal IsNaN IsInf
    Sigmoid Softplus Softsign Mish HardSwish Relu Elu Selu LeakyRelu ThresholdedRelu HardSigmoid Celu Gelu Swish Shrink
"""
UNARY = {
    **dict.fromkeys(SMOOTH.split(), FLOATS),
    **dict.fromkeys("Abs Sign Identity".split(), NUMBERS),
    "Neg": (*FLOATS, "int32", "int64"),
    "Not": ("bool",),
}
BINARY = {
    **dict.fromkeys("Add Sub Mul Div Less LessOrEqual Greater GreaterOrEqual Equal Max Min".split(), NUMBERS),
    **dict.fromkeys("PRelu Sum Mean Pow".split(), FLOATS),
    **dict.fromkeys("And Or Xor".split(), ("bool",)),
    "Mod": INTEGERS,
}
SPECIAL = np.array([0.0, -0.0, 0.5, 1.5, 2.5, -2.5, np.nan, np.inf, -np.inf, 1.0, -1.0, 3.0, -3.0])
# the reference evaluator itself gives NaN (or, for ThresholdedRelu, loses it) at infinite arguments of these
NOT_AT_INFINITY = {
    "Softplus",
    "Mish",
    "Selu",
    "Sigmoid",
    "HardSwish",
    "Erf",
    "Softsign",
    "Swish",
    "Gelu",
    "ThresholdedRelu",
}
OPSET = {"Swish": 24}
EXACT = {
    "Erf": torch.erf,
    "HardSwish": torch.nn.functional.hardswish,
    "Gelu": torch.nn.functional.gelu,
}  # else float32 inside


def data(dtype: str, shape: tuple[int, ...] = (3, 5), seed: int = 0) -> np.ndarray:
    values = np.random.default_rng(seed).normal(size=shape) * 3
    return np.asarray(values > 0 if dtype == "bool" else np.abs(values) if dtype == "uint8" else values).astype(dtype)


def cases(table: dict[str, tuple[str, ...]]) -> list[tuple[str, str]]:
    return [(name, dtype) for name, dtypes in table.items() for dtype in dtypes]


@pytest.mark.parametrize("op_type, dtype", cases(UNARY))
def test_unary(op_type: str, dtype: str) -> None:
    check(op_type, [data(dtype)], opset=OPSET.get(op_type, 23), exact=EXACT.get(op_type))


@pytest.mark.parametrize(
    "op_type", [n for n, types in UNARY.items() if "float32" in types and n not in NOT_AT_INFINITY]
)
def test_unary_at_special_values(op_type: str) -> None:
    check(op_type, [SPECIAL.astype(np.float32)], opset=OPSET.get(op_type, 23))


@pytest.mark.parametrize("op_type, dtype", cases(BINARY))
def test_binary_broadcasts(op_type: str, dtype: str) -> None:
    right = data(dtype, (5,), seed=1)
    if op_type in ("Div", "Mod"):
        right = np.where(right == 0, np.ones_like(right), right)
    left = np.abs(data(dtype)) if op_type == "Pow" else data(dtype)
    if op_type == "Mod":
        check(op_type, [left, right])
        check(op_type, [left, right], fmod=1)
        return
    check(op_type, [left, right])


@pytest.mark.parametrize("op_type", ["Add", "Sub", "Mul", "Div", "Max", "Less"])
@pytest.mark.parametrize("shapes", [((), ()), ((), (3,)), ((0, 4), (1, 4)), ((2, 1, 3), (4, 1)), ((1,), ())])
def test_shapes(op_type: str, shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    check(op_type, [data("float32", shapes[0]), data("float32", shapes[1], seed=1)])


@pytest.mark.parametrize("op_type", ["Sub", "Div", "Max"])
def test_nan_and_infinity_survive(op_type: str) -> None:
    x = np.repeat(SPECIAL.astype(np.float32), len(SPECIAL))
    y = np.tile(SPECIAL.astype(np.float32), len(SPECIAL))
    check(op_type, [x, y])


@pytest.mark.parametrize("op_type", ["Sub", "Div"])
def test_one_array_as_both_operands(op_type: str) -> None:
    graph, feeds = single(op_type, [SPECIAL.astype(np.float32)] * 2)
    node = graph.operators()[0]
    x = graph.inputs[0]
    graph.remove(node)
    graph.add_operator(op_type, [x, x], [graph.outputs[0]])
    ours = interpret(lowered(graph), feeds)[graph.outputs[0]]
    with np.errstate(all="ignore"):
        value = SPECIAL.astype(np.float32)
        np.testing.assert_array_equal(ours, value - value if op_type == "Sub" else value / value)


@pytest.mark.parametrize("exponent", [2.0, 0.5, -1.0, 3.0, 0.0, 1.7])
def test_power_by_a_constant(exponent: float) -> None:
    check("Pow", [np.abs(data("float32")) + 0.1, np.array(exponent, np.float32)], constants=[1])


def test_power_of_mixed_types() -> None:
    check("Pow", [data("float32"), np.array([2, 3, 0, 1, 2], np.int64)])
    check("Pow", [data("int32"), np.array([2, 3, 0, 1, 2], np.int32)])


def test_where() -> None:
    check("Where", [data("bool"), data("float32", (5,)), data("float32", (3, 1))])
    check("Where", [data("bool"), data("int64", (5,)), data("int64", (3, 1))])


@pytest.mark.parametrize("bounds", [(-1.0, 1.0), (None, 1.0), (-1.0, None), (None, None), (2.0, -2.0)])
def test_clip(bounds: tuple[float | None, float | None]) -> None:
    limits = [None if v is None else np.array(v, np.float32) for v in bounds]
    check("Clip", [data("float32"), *limits])
    check("Clip", [data("float32"), *limits], constants=[1, 2])


def test_clip_of_integers() -> None:
    check("Clip", [data("int32"), np.array(-1, np.int32), np.array(2, np.int32)])


@pytest.mark.parametrize("source", ["float32", "float64", "int32", "int64", "bool"])
@pytest.mark.parametrize("target", [1, 11, 6, 7, 9])
def test_cast(source: str, target: int) -> None:
    check("Cast", [data(source)], to=target)


def test_gelu_by_tanh() -> None:
    check("Gelu", [data("float32")], approximate="tanh")


@pytest.mark.parametrize("op_type", ["Max", "Min", "Sum", "Mean"])
@pytest.mark.parametrize("count", [1, 3])
def test_variadic(op_type: str, count: int) -> None:
    check(op_type, [data("float32", seed=k) for k in range(count)])


@pytest.mark.parametrize(
    "op_type", ["Relu", "Clip", "Softplus", "Sigmoid", "Gelu", "ThresholdedRelu", "LeakyRelu", "Max"]
)
def test_not_a_number_stays(op_type: str) -> None:
    x = np.array([np.nan, 1.0], np.float32)
    graph, feeds = single(op_type, [x, x] if op_type == "Max" else [x])
    assert np.isnan(interpret(lowered(graph), feeds)[graph.outputs[0]]).tolist() == [True, False]


@pytest.mark.parametrize("positive, negative", [(1, 1), (1, 0), (0, 1), (0, 0)])
def test_is_infinite(positive: int, negative: int) -> None:
    check("IsInf", [SPECIAL.astype(np.float32)], detect_positive=positive, detect_negative=negative)

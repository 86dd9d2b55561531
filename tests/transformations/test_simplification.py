"""Arithmetic, conversions and pools that can be had for less, exactly; and what is not the same to the last bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dace
import numpy as np
import pytest
import torch

from daceopt.ir.interpreter.interpret import interpret
from daceopt.transformations.coarse.algebraic_simplification import AlgebraicSimplification
from daceopt.transformations.coarse.cast_removal import CastRemoval
from daceopt.transformations.coarse.pool_removal import PoolRemoval
from tests.transformations.derivatives import assert_same_gradients
from tests.transformations.graphs import Net, check, near_misses, op_types

SPECIAL = np.array([[np.nan, np.inf, -np.inf, -0.0, 0.0], [1e-45, -3e38, 2.5, -7.25, 1e30]], np.float32)
Build = Callable[[Net], str]


def arithmetic_net() -> Net:
    return Net(x=(2, 5), z=(2, 5))


def of(*chain: str) -> Build:
    """Operators over ``x``, the innermost first."""

    def build(net: Net) -> str:
        y = net.x
        for op_type in chain:
            y = net.op(op_type, y)
        return y

    return build


def by(op_type: str, number: float) -> Build:
    return lambda net: net.op(op_type, net.x, net.const(number))


def negated(op_type: str, both: bool) -> Build:
    return lambda net: net.op(op_type, net.op("Neg", net.x) if both else net.x, net.op("Neg", net.z))


EXACT: list[tuple[Build, list[str]]] = [
    (by("Div", 8.0), ["Mul"]),
    (by("Div", -0.25), ["Mul"]),
    (by("Pow", 2.0), ["Mul"]),
    (by("Mul", -1.0), ["Neg"]),
    (of("Neg", "Neg"), []),
    (of("Neg", "Abs"), ["Abs"]),
    (of("Floor", "Floor"), ["Floor"]),
    (of("Relu", "Relu"), ["Relu"]),
    (negated("Mul", both=True), ["Mul"]),
    (negated("Div", both=True), ["Div"]),
    (negated("Add", both=False), ["Sub"]),
    (negated("Sub", both=False), ["Add"]),
    (by("Add", -0.0), []),
    (by("Sub", 0.0), []),
    (by("Pow", 1.0), []),
    (lambda net: net.op("Max", net.x, net.x), []),
]


@pytest.mark.parametrize(("build", "expected"), EXACT)
def test_the_same_to_the_last_bit(build: Build, expected: list[str]) -> None:
    net = arithmetic_net()
    graph = net.done(net.op("Tanh", build(net)))
    before = graph.copy()
    check(AlgebraicSimplification(), graph, [*expected, "Tanh"])
    feeds = dict(zip(graph.inputs, (SPECIAL, SPECIAL[::-1].copy()), strict=True))
    with np.errstate(all="ignore"):
        ours, theirs = (interpret(g, feeds)[g.outputs[0]] for g in (graph, before))
    assert np.array_equal(ours, theirs, equal_nan=True)
    assert np.array_equal(np.signbit(ours)[~np.isnan(ours)], np.signbit(theirs)[~np.isnan(ours)])
    if not {"Floor"} & {*expected}:  # whose gradient is 0 everywhere
        assert_same_gradients(before, graph)


@pytest.mark.parametrize(
    "build",
    [
        by("Div", 3.0),
        by("Div", 1e-40),
        by("Add", 0.0),
        by("Sub", -0.0),
        by("Pow", 3.0),
        by("Pow", -1.0),
        by("Pow", 0.5),
        by("Mul", 0.0),
        of("Sqrt", "Sqrt"),
        of("Abs", "Neg"),
        of("Floor", "Ceil"),
        negated("Max", both=True),
    ],
)
def test_what_would_not_be_the_same(build: Build) -> None:
    net = arithmetic_net()
    assert AlgebraicSimplification().run(net.done(build(net))).sites == []


def test_a_constant_that_gives_the_shape_stays() -> None:
    net = Net(x=(1, 5))
    wide = net.op("Sub", net.x, net.const(np.zeros((2, 5))))
    assert AlgebraicSimplification().run(net.done(net.op("Relu", wide))).sites == []


def test_integers_are_divided_as_integers() -> None:
    net = Net(x=(2, 5))
    whole = net.op("Cast", net.x, dtype=dace.int64, to=7)
    graph = net.done(net.op("Div", whole, net.const(4, np.int64)))
    assert AlgebraicSimplification().run(graph).sites == []


def test_conditions() -> None:
    net = arithmetic_net()
    less = net.op("Less", net.x, net.z, dtype=dace.bool_)
    twice = net.op("Not", net.op("Not", less))
    same = net.op("Where", twice, net.z, net.z, dtype=dace.float32)
    y = net.op("Where", net.op("Not", twice), net.x, same, dtype=dace.float32)
    check(AlgebraicSimplification(), net.done(y), ["Less", "Where"], sites=3)


def test_a_chain() -> None:
    net = arithmetic_net()
    a = net.op("Neg", net.op("Neg", net.op("Div", net.x, net.const(8.0))))
    y = net.op("Pow", net.op("Add", a, net.op("Neg", net.z)), net.const(2.0))
    check(AlgebraicSimplification(), net.done(y), ["Mul", "Sub", "Mul"], sites=4)


# -------------------------------------------------------------------- conversions

CODES = {"float32": 1, "uint8": 2, "int8": 3, "int32": 6, "int64": 7, "bool": 9, "float16": 10, "float64": 11}


def converted(*names: str) -> Net:
    """A net whose ``y`` is a float32 that is converted from type to type."""
    net = Net(x=(2, 5))
    net.y = net.x
    for name in names:
        net.y = net.op("Cast", net.y, dtype=getattr(dace, name.replace("bool", "bool_")), to=CODES[name])
    return net


@pytest.mark.parametrize(
    ("names", "left"),
    [
        (("float64", "float32"), 0),
        (("int8", "float32", "float64"), 2),
        (("int32", "int64", "int32"), 1),
        (("int32", "float64", "int64"), 2),
        (("int8", "int32", "uint8"), 2),
        (("bool", "int32", "float32"), 2),
    ],
)
def test_conversions_in_between(names: tuple[str, ...], left: int) -> None:
    net = converted(*names)
    check(CastRemoval(), net.done(net.op("Abs" if names[-1] != "bool" else "Not", net.y)), ["Cast"] * left + ["Abs"])


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (("int64", "float64", "int64"), "does not hold every int64"),
        (("int32", "float32", "int32"), "does not hold every int32"),
        (("int64", "int32", "float64"), "does not hold every int64"),
        (("int32", "int8", "int32"), "does not hold every int32"),
        (("int32", "bool", "int32"), "does not hold every int32"),
        (("float16", "float32"), "does not hold every float32"),
        (("int32", "float64", "int8"), "converts as the machine does"),
    ],
)
def test_conversions_that_do_something(names: tuple[str, ...], reason: str) -> None:
    net = converted(*names)
    graph = net.done(net.op("Abs", net.y))
    outcome = CastRemoval().run(graph)
    assert any(reason in miss for miss in outcome.near_misses)


def test_the_gradient_of_widened_arithmetic() -> None:
    net = converted("float64", "float32")
    graph = net.done(net.op("Tanh", net.y))
    before = graph.copy()
    CastRemoval().run(graph)
    assert_same_gradients(before, graph)


# -------------------------------------------------------------------- pools

IMAGE = (2, 3, 4, 6)


def pooled(op_type: str, shape: tuple[int, ...], **attributes: Any) -> Net:
    net = Net(x=IMAGE)
    net.y = net.op(op_type, net.x, shape=shape, **attributes)
    return net


@pytest.mark.parametrize(
    ("op_type", "attributes"),
    [
        ("AveragePool", {"kernel_shape": [4, 6]}),
        ("AveragePool", {"kernel_shape": [4, 6], "strides": [4, 6], "pads": [0, 0, 0, 0]}),
        ("GlobalAveragePool", {}),
    ],
)
def test_one_window_is_a_mean(op_type: str, attributes: dict[str, Any]) -> None:
    net = pooled(op_type, (2, 3, 1, 1), **attributes)
    graph = net.done(net.op("Tanh", net.y))
    before = graph.copy()
    check(PoolRemoval(), graph, ["ReduceMean", "Tanh"])
    assert_same_gradients(before, graph)


@pytest.mark.parametrize(("kernel", "padding_counts"), [([9, 6], 0), ([9, 99], 1)])
def test_a_window_larger_than_the_image_is_a_mean(kernel: list[int], padding_counts: int) -> None:
    """ONNX's reference has no such windows; PyTorch has, with ``ceil_mode``."""
    attributes = {"kernel_shape": kernel, "strides": kernel, "ceil_mode": 1, "count_include_pad": padding_counts}
    net = pooled("AveragePool", (2, 3, 1, 1), **attributes)
    graph = net.done(net.y)
    assert PoolRemoval().run(graph).sites
    x = np.random.default_rng(0).standard_normal(IMAGE)
    options = {"ceil_mode": True, "count_include_pad": bool(padding_counts)}
    expected = torch.nn.functional.avg_pool2d(torch.from_numpy(x), kernel, **options)
    (found,) = interpret(graph, {net.x: x}, np.float64).values()
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-14)


@pytest.mark.parametrize("op_type", ["AveragePool", "MaxPool"])
def test_windows_of_one_element_are_nothing(op_type: str) -> None:
    net = pooled(op_type, IMAGE, kernel_shape=[1, 1])
    check(PoolRemoval(), net.done(net.op("Tanh", net.y)), ["Tanh"])


@pytest.mark.parametrize(
    ("op_type", "shape", "attributes"),
    [
        ("AveragePool", (2, 3, 2, 3), {"kernel_shape": [2, 2], "strides": [2, 2]}),
        ("AveragePool", (2, 3, 3, 3), {"kernel_shape": [4, 6], "pads": [1, 1, 1, 1]}),
        ("AveragePool", (2, 3, 2, 1), {"kernel_shape": [3, 6], "strides": [2, 6], "ceil_mode": 1}),
        ("MaxPool", (2, 3, 1, 1), {"kernel_shape": [4, 6]}),
        ("MaxPool", (2, 3, 2, 3), {"kernel_shape": [1, 1], "strides": [2, 2]}),
    ],
)
def test_other_windows(op_type: str, shape: tuple[int, ...], attributes: dict[str, Any]) -> None:
    net = pooled(op_type, shape, **attributes)
    graph = net.done(net.op("Tanh", net.y))
    assert "neither the whole image nor single elements" in near_misses(PoolRemoval(), graph)
    assert op_types(graph) == [op_type, "Tanh"]

"""Products that read the same array become one, where that copies no weights, or few."""

from __future__ import annotations

from typing import Any

import dace
import numpy as np
import pytest

from daceopt.ir.graph.graph import Graph
from daceopt.ir.text.render import render
from daceopt.transformations.coarse.horizontal_product_fusion import HorizontalProductFusion
from tests.transformations.derivatives import assert_same_gradients
from tests.transformations.graphs import Net, check, near_misses, op_types

RNG = np.random.default_rng(4)
INNER, COLUMNS = 8, (4, 5, 6)


def projections(constant: bool = True, bias: bool = True, turned: bool = False, gemm: bool = False) -> Graph:
    """As queries, keys and values are made: weights are constants or inputs, (columns, inner) where ``turned``."""
    shapes = [(n, INNER) if turned else (INNER, n) for n in COLUMNS]
    weights = {} if constant else {f"w{k}": shape for k, shape in enumerate(shapes)}
    net = Net(x=(7, INNER) if gemm else (2, 5, INNER), **weights)
    rows = net.graph.shape(net.x)[:-1]
    results = []
    for k, (shape, n) in enumerate(zip(shapes, COLUMNS, strict=True)):
        w = net.const(RNG.standard_normal(shape)) if constant else getattr(net, f"w{k}")
        b = net.const(RNG.standard_normal(n)) if bias else None
        if gemm:
            y = net.op("Gemm", net.x, w, *([b] if b else []), shape=(*rows, n), transB=int(turned))
        else:
            w = net.op("Transpose", w, shape=(INNER, n), perm=[1, 0]) if turned else w
            y = net.op("MatMul", net.x, w, shape=(*rows, n))
            y = net.op("Add", y, b) if b else y
        results.append(net.op("Relu", y))
    return net.done(*results)


RELUS = ["Relu"] * len(COLUMNS)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_constant_weights_are_put_together_when_compiling(bias: bool, turned: bool) -> None:
    graph = projections(bias=bias, turned=turned)
    before = graph.copy()
    check(HorizontalProductFusion(), graph, [*["Transpose"] * turned, "MatMul", *["Add"] * bias, "Split", *RELUS])
    assert_same_gradients(before, graph)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_gemm(bias: bool, turned: bool) -> None:
    check(HorizontalProductFusion(), projections(bias=bias, turned=turned, gemm=True), ["Gemm", "Split", *RELUS])


def test_golden() -> None:
    graph = projections(bias=False, constant=False, turned=True)
    HorizontalProductFusion(copied=100.0).run(graph)
    lines = [line.strip() for line in render(graph).splitlines() if " = " in line][:5]
    assert [line.split(" = ")[1].split(";")[0] for line in lines if "int64" not in line] == [
        "Concat(w0_2, w1_3, w2_4",
        "Transpose(weights_15",
        "MatMul(x_1, weights_16)",
        "Split(product_14, sizes_17",
    ]


@pytest.mark.parametrize("turned", [False, True])
def test_other_weights_are_copied_where_that_is_asked_for(turned: bool) -> None:
    graph = projections(constant=False, turned=turned)
    before = graph.copy()
    turns = ["Transpose"] * turned
    check(HorizontalProductFusion(copied=100.0), graph, ["Concat", *turns, "MatMul", "Add", "Split", *RELUS])
    assert_same_gradients(before, graph)


def test_other_weights_are_not_copied_at_every_call() -> None:
    reason = "240 elements of weights would be copied at each call to read 160 less of x_1"
    assert reason in near_misses(HorizontalProductFusion(), projections(constant=False, bias=False))
    assert HorizontalProductFusion(copied=1.5).run(projections(constant=False, bias=False)).sites


def two(first: str, second: str, net: Net, *outputs: str) -> Graph:
    return net.done(net.op("Relu", first), net.op("Relu", second), *outputs)


def weights(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape)


def test_other_operands() -> None:
    net = Net(x=(3, 4), z=(3, 4))
    a, b = (net.op("MatMul", x, net.const(weights(4, 5)), shape=(3, 5)) for x in (net.x, net.z))
    assert HorizontalProductFusion().run(two(a, b, net)).sites == []


def test_the_shared_operand_on_the_right() -> None:
    net = Net(x=(4, 3))
    a, b = (net.op("MatMul", net.const(weights(5, 4)), net.x, shape=(5, 3)) for _ in range(2))
    assert HorizontalProductFusion().run(two(a, b, net)).sites == []


def test_batches_of_weights() -> None:
    net = Net(x=(2, 3, 4))
    a, b = (net.op("MatMul", net.x, net.const(weights(2, 4, 5)), shape=(2, 3, 5)) for _ in range(2))
    assert HorizontalProductFusion().run(two(a, b, net)).sites == []


def test_a_bias_for_one_alone() -> None:
    net = Net(x=(3, 4))
    a, b = (net.op("MatMul", net.x, net.const(weights(4, 5)), shape=(3, 5)) for _ in range(2))
    assert HorizontalProductFusion().run(two(net.op("Add", a, net.const(weights(5))), b, net)).sites == []


def test_a_residual_is_no_bias() -> None:
    net = Net(x=(3, 4), r=(3, 5))
    a, b = (net.op("MatMul", net.x, net.const(weights(4, 5)), shape=(3, 5)) for _ in range(2))
    graph = two(net.op("Add", a, net.r), b, net)
    check(HorizontalProductFusion(), graph, ["MatMul", "Split", "Add", "Relu", "Relu"])


def test_scaled_products() -> None:
    net = Net(x=(3, 4))
    a, b = (net.op("Gemm", net.x, net.const(weights(4, 5)), shape=(3, 5), alpha=s) for s in (1.0, 0.5))
    assert HorizontalProductFusion().run(two(a, b, net)).sites == []


def test_weights_that_follow_from_one_another() -> None:
    net = Net(x=(4, 4))
    a = net.op("MatMul", net.x, net.const(weights(4, 4)), shape=(4, 4))
    b = net.op("MatMul", net.x, net.op("Tanh", a), shape=(4, 4))
    assert "is computed" in near_misses(HorizontalProductFusion(), net.done(net.op("Relu", b)))


def test_results_that_are_outputs() -> None:
    net = Net(x=(3, 4))
    a, b = (net.op("MatMul", net.x, net.const(weights(4, 5)), shape=(3, 5)) for _ in range(2))
    assert "is a graph output" in near_misses(HorizontalProductFusion(), net.done(a, net.op("Relu", b)))


@pytest.mark.parametrize("dtype", [np.float64])
def test_other_types_are_other_products(dtype: Any) -> None:
    net = Net(x=(3, 4))
    wide = net.op("Cast", net.x, dtype=dace.float64, to=11)
    a = net.op("MatMul", net.x, net.const(weights(4, 5)), shape=(3, 5))
    b = net.op("MatMul", wide, net.const(weights(4, 5), dtype), shape=(3, 5))
    graph = two(a, b, net)
    assert HorizontalProductFusion().run(graph).sites == [] and op_types(graph).count("MatMul") == 2

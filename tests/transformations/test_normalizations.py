"""Layer norm and RMS norm are lifted in every order that exporters write, and only from the real thing."""

from __future__ import annotations

import numpy as np
import pytest

from daceopt.ir.text.render import render
from daceopt.transformations.coarse.layer_norm_lifting import LayerNormLifting
from daceopt.transformations.coarse.rms_norm_lifting import RmsNormLifting
from tests.transformations.graphs import Net, check, near_misses

SHAPE, ROW = (2, 3, 8), (2, 3, 1)


def layer_norm(net: Net, reciprocal: bool = False, affine: int = 2, axis: int = -1) -> str:
    axes = net.const([axis], np.int64)
    mean = net.op("ReduceMean", net.x, axes, shape=ROW)
    d = net.op("Sub", net.x, mean)
    square = net.op("Mul", d, d) if reciprocal else net.op("Pow", d, net.const(2.0))
    variance = net.op("ReduceMean", square, axes, shape=ROW)
    root = net.op("Sqrt", net.op("Add", variance, net.const(1e-5)))
    y = net.op("Mul", net.op("Reciprocal", root), d) if reciprocal else net.op("Div", d, root)
    if affine > 0:
        y = net.op("Mul", net.gamma, y)
    return net.op("Add", y, net.beta) if affine > 1 else y


@pytest.mark.parametrize("reciprocal", [False, True])
@pytest.mark.parametrize("affine", [0, 1, 2])
def test_layer_norm(reciprocal: bool, affine: int) -> None:
    net = Net(x=SHAPE, gamma=(8,), beta=(8,))
    check(LayerNormLifting(), net.done(layer_norm(net, reciprocal, affine)), ["LayerNormalization"])


def test_layer_norm_golden() -> None:
    net = Net(x=SHAPE, gamma=(8,), beta=(8,))
    graph = net.done(layer_norm(net))
    LayerNormLifting().run(graph)
    assert render(graph) == (
        "graph test(x_1: float32[2, 3, 8], gamma_2: float32[8], beta_3: float32[8]) -> add_15\n"
        '  opset "" 21\n'
        '  add_15: float32[2, 3, 8] as "Add" = LayerNormalization(x_1, gamma_2, beta_3; '
        "axis=2, epsilon=9.999999747378752e-06, stash_type=1)\n"
    )


def test_layer_norm_with_a_second_user_inside() -> None:
    net = Net(x=SHAPE, gamma=(8,), beta=(8,))
    y = layer_norm(net)
    variance = next(n for n in net.graph.operators() if n.op_type == "Sqrt")
    graph = net.done(y, net.op("Neg", net.graph.result(variance, 0)))
    assert "inside the normalization has another user" in near_misses(LayerNormLifting(), graph)


def test_layer_norm_of_something_else_than_the_mean() -> None:
    net = Net(x=SHAPE, m=ROW)
    d = net.op("Sub", net.x, net.m)
    variance = net.op("ReduceMean", net.op("Mul", d, d), net.const([-1], np.int64), shape=ROW)
    graph = net.done(net.op("Div", d, net.op("Sqrt", net.op("Add", variance, net.const(1e-5)))))
    assert "is not its mean" in near_misses(LayerNormLifting(), graph)


def rms_norm(net: Net, of: str | None = None, affine: bool = True) -> str:
    square = net.op("Pow", of or net.x, net.const(2.0))
    mean = net.op("ReduceMean", square, net.const([2], np.int64), shape=ROW)
    root = net.op("Sqrt", net.op("Add", mean, net.const(1e-6)))
    y = net.op("Mul", net.x, net.op("Reciprocal", root))
    return net.op("Mul", net.gamma, y) if affine else y


@pytest.mark.parametrize("affine", [False, True])
def test_rms_norm(affine: bool) -> None:
    net = Net(x=SHAPE, gamma=(8,), opset=23)
    check(RmsNormLifting(), net.done(rms_norm(net, affine=affine)), ["RMSNormalization"])


def test_rms_norm_of_another_array() -> None:
    net = Net(x=SHAPE, z=SHAPE, gamma=(8,), opset=23)
    assert "the mean square is of z_2" in near_misses(RmsNormLifting(), net.done(rms_norm(net, net.z)))


def test_scale_of_another_shape_stays_outside() -> None:
    net = Net(x=SHAPE, gamma=(3, 1), opset=23)
    check(RmsNormLifting(), net.done(rms_norm(net)), ["RMSNormalization", "Mul"])

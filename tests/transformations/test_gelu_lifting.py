"""GELU is recognised in any operand order, and near relatives are not taken for it."""

from __future__ import annotations

from math import pi, sqrt

import pytest

from daceopt.transformations.coarse.gelu_lifting import GeluLifting
from tests.transformations.graphs import Net, check, near_misses


def erf_gate(net: Net, constant: float = sqrt(2.0)) -> str:
    return net.op("Add", net.const(1.0), net.op("Erf", net.op("Div", net.x, net.const(constant))))


def tanh_gate(net: Net, cubic: float = 0.044715) -> str:
    cube = net.op("Mul", net.const(cubic), net.op("Pow", net.x, net.const(3.0)))
    inner = net.op("Mul", net.op("Add", net.x, cube), net.const(sqrt(2 / pi)))
    return net.op("Add", net.op("Tanh", inner), net.const(1.0))


@pytest.mark.parametrize("gate", [erf_gate, tanh_gate])
@pytest.mark.parametrize("order", range(4))
def test_all_orders(gate, order: int) -> None:
    net = Net(x=(2, 5))
    half, g = net.const(0.5), gate(net)
    y = [
        lambda: net.op("Mul", net.op("Mul", net.x, half), g),
        lambda: net.op("Mul", net.op("Mul", net.x, g), half),
        lambda: net.op("Mul", net.x, net.op("Mul", half, g)),
        lambda: net.op("Div", net.op("Mul", g, net.x), net.const(2.0)),
    ][order]()
    graph = net.done(y)
    check(GeluLifting(), graph, ["Gelu"])
    assert graph.operators()[0].attribute("approximate") == ("none" if gate is erf_gate else "tanh")


def test_product_form_of_the_cube() -> None:
    net = Net(x=(2, 5))
    square = net.op("Mul", net.x, net.x)
    factor = net.op("Add", net.op("Mul", square, net.const(0.044715)), net.const(1.0))
    inner = net.op("Mul", net.op("Mul", net.x, net.const(sqrt(2 / pi))), factor)
    gate = net.op("Add", net.const(1.0), net.op("Tanh", inner))
    check(GeluLifting(), net.done(net.op("Mul", net.op("Mul", net.const(0.5), net.x), gate)), ["Gelu"])


def test_inside_a_larger_product() -> None:
    net = Net(x=(2, 5), z=(2, 5))
    gelu = net.op("Mul", net.op("Mul", net.x, net.const(0.5)), erf_gate(net))
    check(GeluLifting(), net.done(net.op("Mul", net.z, gelu)), ["Gelu", "Mul"])


@pytest.mark.parametrize(
    ("factor", "gate", "reason"),
    [
        (0.4, lambda net: erf_gate(net), "constant factor is 0.4, expected 0.5"),
        (0.5, lambda net: erf_gate(net, 1.5), "has coefficients"),
        (0.5, lambda net: tanh_gate(net, 0.05), "has coefficients"),
    ],
)
def test_relatives(factor: float, gate, reason: str) -> None:
    net = Net(x=(2, 5))
    y = net.op("Mul", net.op("Mul", net.x, net.const(factor)), gate(net))
    assert reason in near_misses(GeluLifting(), net.done(y))


def test_shared_interior() -> None:
    net = Net(x=(2, 5))
    gate = erf_gate(net)
    y = net.op("Mul", net.op("Mul", net.x, net.const(0.5)), gate)
    assert "has another user" in near_misses(GeluLifting(), net.done(y, net.op("Neg", gate)))

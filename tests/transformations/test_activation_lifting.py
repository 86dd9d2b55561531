"""SiLU and Mish in the forms that exporters write, and their relatives."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from daceopt.ir.graph.graph import Graph
from daceopt.transformations.coarse.mish_lifting import MishLifting
from daceopt.transformations.coarse.silu_lifting import SiluLifting
from tests.transformations.derivatives import assert_same_gradients
from tests.transformations.graphs import Net, check, near_misses, op_types
from tests.transformations.lowered import apply


def sigmoid_form(net: Net) -> str:
    return net.op("Mul", net.op("Sigmoid", net.x), net.x)


def scaled_form(net: Net) -> str:
    return net.op("Mul", net.x, net.op("Sigmoid", net.op("Mul", net.const(1.702), net.x)))


def exponential_form(net: Net) -> str:
    return net.op("Div", net.x, net.op("Add", net.const(1.0), net.op("Exp", net.op("Neg", net.x))))


@pytest.mark.parametrize(("form", "alpha"), [(sigmoid_form, 1.0), (scaled_form, 1.702), (exponential_form, 1.0)])
def test_silu(form: Callable[[Net], str], alpha: float) -> None:
    net = Net(x=(2, 5))
    graph = net.done(form(net))
    before = graph.copy()
    assert len(apply(SiluLifting(), graph).sites) == 1
    (node,) = graph.operators()
    assert node.op_type == "Swish" and np.isclose(node.attribute("alpha"), alpha)
    assert_same_gradients(before, graph)


def softplus_form(net: Net) -> str:
    return net.op("Mul", net.x, net.op("Tanh", net.op("Softplus", net.x)))


def logarithm_form(net: Net) -> str:
    softplus = net.op("Log", net.op("Add", net.op("Exp", net.x), net.const(1.0)))
    return net.op("Mul", net.op("Tanh", softplus), net.x)


@pytest.mark.parametrize("form", [softplus_form, logarithm_form])
def test_mish(form: Callable[[Net], str]) -> None:
    net = Net(x=(2, 5))
    graph = net.done(form(net))
    before = graph.copy()
    check(MishLifting(), graph, ["Mish"])
    assert_same_gradients(before, graph)


def other_argument(net: Net, inner: str, outer: str) -> Graph:
    return net.done(net.op("Mul", net.z, net.op(outer, net.op(inner, net.x))))


def test_gates_of_other_arrays() -> None:
    net = Net(x=(2, 5), z=(2, 5))
    gated = net.op("Mul", net.z, net.op("Sigmoid", net.x))
    assert SiluLifting().run(net.done(gated)).sites == []
    net = Net(x=(2, 5), z=(2, 5))
    assert MishLifting().run(other_argument(net, "Softplus", "Tanh")).sites == []


def test_a_gate_that_others_read() -> None:
    net = Net(x=(2, 5))
    gate = net.op("Sigmoid", net.x)
    graph = net.done(net.op("Mul", net.x, gate), net.op("Relu", gate))
    assert "has another user" in near_misses(SiluLifting(), graph)


def test_two_instead_of_one() -> None:
    net = Net(x=(2, 5))
    softplus = net.op("Log", net.op("Add", net.op("Exp", net.x), net.const(2.0)))
    graph = net.done(net.op("Mul", net.x, net.op("Tanh", softplus)))
    assert MishLifting().run(graph).sites == [] and op_types(graph)[-1] == "Mul"


def test_a_sigmoid_of_rows() -> None:
    """One factor for each row is no SiLU."""
    net = Net(x=(2, 5), r=(2, 1))
    graph = net.done(net.op("Mul", net.x, net.op("Sigmoid", net.op("Mul", net.x, net.r))))
    assert SiluLifting().run(graph).sites == []

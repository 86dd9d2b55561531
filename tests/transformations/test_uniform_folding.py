"""Uniform folding: arrays of one repeated value are computed with as that value."""

from __future__ import annotations

import dace
import numpy as np
import pytest

from daceopt.ir.graph.graph import Graph
from daceopt.transformations.coarse.uniform_folding import UniformFolding
from tests.transformations.graphs import Net, check, op_types

BOOL = dace.bool_


def mask(net: Net, value: bool = True) -> str:
    return net.op("Expand", net.const(value, np.bool_), net.const([2, 5], np.int64), shape=(2, 5), dtype=BOOL)


@pytest.mark.parametrize("value", [True, False])
def test_a_mask_of_one_value_chooses(value: bool) -> None:
    net = Net(x=(2, 5), y=(2, 5))
    graph = net.done(net.op("Neg", net.op("Where", mask(net, value), net.x, net.y, shape=(2, 5), dtype=dace.float32)))
    check(UniformFolding(), graph, ["Neg"])
    assert graph.inputs_of(graph.operators()[0]) == [net.x if value else net.y]


def test_the_chosen_operand_is_broadcast() -> None:
    net = Net(x=(5,))
    chosen = net.op("Where", mask(net), net.x, net.const(0.0), shape=(2, 5), dtype=dace.float32)
    check(UniformFolding(), net.done(net.op("Neg", chosen)), ["Expand", "Neg"])


def test_arithmetic_and_moves_of_uniform_arrays() -> None:
    net = Net(x=(5, 2))
    big = net.op("Expand", net.const(2.0), net.const([2, 5], np.int64), shape=(2, 5))
    turned = net.op("Transpose", net.op("Mul", big, net.const(3.0)), shape=(5, 2), perm=[1, 0])
    graph = net.done(net.op("Add", net.x, turned))
    check(UniformFolding(), graph, ["Expand", "Add"], sites=2)
    constant = graph.inputs_of(graph.operators()[0])[0]
    assert graph.constants[constant].tolist() == [[6.0]]


def test_special_values_stay_what_they_are() -> None:
    for value in (np.nan, np.inf, -0.0):
        net = Net(x=(2, 5))
        big = net.op("Expand", net.const(value), net.const([2, 5], np.int64), shape=(2, 5))
        graph = net.done(net.op("Add", net.x, net.op("Neg", big)))
        UniformFolding().run(graph)
        found = graph.constants[graph.inputs_of(graph.operators()[0])[0]]
        np.testing.assert_array_equal(found, [[-np.float32(value)]])
        assert np.signbit(found).item() == np.signbit(-np.float32(value))


def stays(graph: Graph, operators: list[str]) -> None:
    assert UniformFolding().run(graph).sites == [] and op_types(graph) == operators


def test_arrays_that_vary() -> None:
    net = Net(x=(2, 5))
    stays(net.done(net.op("Neg", net.op("Add", net.x, net.const(np.arange(5.0))))), ["Add", "Neg"])


def test_equal_zeros_of_different_sign_are_not_uniform() -> None:
    net = Net(x=(2,))
    zeros = net.op("Mul", net.const([1.0, 1.0]), net.const([0.0, -0.0]))
    stays(net.done(net.op("Div", net.x, zeros)), ["Mul", "Div"])


def test_sums_and_outputs() -> None:
    net = Net(x=(2, 5))
    big = net.op("Expand", net.const(2.0), net.const([2, 5], np.int64), shape=(2, 5))
    total = net.op("ReduceSum", big, shape=(2, 1), keepdims=1)
    stays(net.done(net.op("Add", net.x, total), net.op("Neg", big)), ["Expand", "ReduceSum", "Neg", "Add"])

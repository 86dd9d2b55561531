"""Sub-graphs: connected kernels and library nodes, without code of others, control flow and what is no loop nest."""

from __future__ import annotations

from typing import Any

import pytest
import sympy

from daceopt.ir.graph.graph import Graph
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.nodes.library import HostCall
from daceopt.ir.text.render import render
from daceopt.ops.core import algorithm
from daceopt.passes.verification import check_match
from daceopt.transformations.partition.aggregation import Aggregation
from daceopt.transformations.partition.cluster_extraction import ClusterExtraction, is_eligible, sub_graphs
from tests.transformations.graphs import Net
from tests.transformations.lowered import F, apply, finish, start

SQUARE = (4, 6)


def host_call(b: Builder, x: str) -> str:
    out = b.graph.add_array("called", b.graph.shape(x), F)
    b.library(HostCall, {"In0": x}, {"Out0": out}, callback="m:f")
    return str(out)


def running_sum(b: Builder, x: str) -> str:
    out = b.graph.add_array("sums", SQUARE, F)
    algorithm.call(b, "cumulate", [x], [out], [4, 6, 1, 0, 0])
    return str(out)


@pytest.mark.parametrize("apart", [host_call, running_sum])
def test_code_that_is_no_loop_nest_separates(apart: Any) -> None:
    graph, b, (x,) = start(SQUARE)
    before = b.elementwise(sympy.exp, b.elementwise(sympy.tanh, x))
    after = b.elementwise(sympy.exp, b.elementwise(sympy.tanh, apart(b, before)))
    first, second, middle, third, fourth = finish(graph, after).nodes()
    assert not is_eligible(middle)
    assert sub_graphs(graph) == [(first, second), (third, fourth)]


def test_what_goes_around_connects() -> None:
    graph, b, (x,) = start(SQUARE)
    before = b.elementwise(sympy.tanh, x)
    finish(graph, b.elementwise(lambda u, v: u + v, before, host_call(b, before)))
    tanh, _, total = graph.nodes()
    assert sub_graphs(graph) == [(tanh, total)]
    outcome = Aggregation().run(graph)  # connected is not enough: the call lies between
    assert outcome.sites == []


def test_views_connect_and_common_inputs_do_not() -> None:
    graph, b, (x, w) = start(SQUARE, SQUARE)
    turned = b.matmul(x, b.transpose(b.elementwise(sympy.tanh, w), [1, 0]))
    finish(graph, turned, b.elementwise(sympy.exp, x))
    assert [len(members) for members in sub_graphs(graph)] == [2, 1]


def test_operators_that_are_not_lowered_are_apart() -> None:
    net = Net(x=SQUARE)
    assert sub_graphs(net.done(net.op("Tanh", net.x))) == []


def test_the_step_changes_nothing() -> None:
    graph, b, (x,) = start(SQUARE)
    finish(graph, b.elementwise(sympy.exp, host_call(b, b.elementwise(sympy.tanh, x))))
    text = render(graph)
    check_match(ClusterExtraction(), graph)
    assert ClusterExtraction().run(graph).sites == ["1 node, from k to k"] * 2
    assert render(graph) == text


def test_nothing_is_no_sub_graph() -> None:
    graph = Graph("empty")
    graph.add_output(graph.add_input("x", SQUARE, F))
    assert apply(ClusterExtraction(), graph).sites == []

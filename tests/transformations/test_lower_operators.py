"""Lowering: all operators, all but those with a gradient rule, or one at a time."""

from __future__ import annotations

import numpy as np

from daceopt import ops
from daceopt.ir.graph.graph import Graph
from daceopt.ir.interpreter.interpret import interpret
from daceopt.ir.text.render import render
from daceopt.transformations.lower.lower_operators import LowerOperators
from tests.numerics import assert_within_rounding
from tests.transformations.graphs import Net, op_types, random_inputs


def network() -> Graph:
    net = Net(x=(2, 5))
    return net.done(net.op("Softmax", net.op("Tanh", net.x), axis=1))


def assert_same(before: Graph, after: Graph) -> None:
    after.validate()
    inputs = {n: v.astype(np.float64) for n, v in random_inputs(before).items()}
    done, expected = (interpret(graph, inputs, dtype=np.float64) for graph in (after, before))
    for name in after.outputs:
        assert_within_rounding(done[name], expected[name], ulps=64.0)


def test_everything_at_once() -> None:
    graph = network()
    before = graph.copy()
    outcome = LowerOperators().run(graph)
    assert outcome.sites == ["Tanh", "Softmax"] and not graph.operators()
    assert_same(before, graph)
    assert LowerOperators().run(graph).sites == []


def test_one_operator() -> None:
    net = Net(x=(2, 5))
    graph = net.done(net.op("Softplus", net.x))
    LowerOperators().run(graph)
    kernel = render(graph).splitlines()
    assert " = kernel " in kernel[2]
    assert "      out0: float32 = softplus(in0)" in kernel


def test_operators_with_a_gradient_rule_stay() -> None:
    graph = network()
    kept = [n.op_type for n in graph.operators() if ops.has_gradient(n)]
    before = graph.copy()
    LowerOperators(keep_rules=True).run(graph)
    assert op_types(graph) == kept and graph.kernels()
    assert_same(before, graph)


def test_one_at_a_time() -> None:
    graph = network()
    before = graph.copy()
    assert len(LowerOperators().run(graph, limit=1).sites) == 1
    assert len(graph.operators()) == 1
    assert_same(before, graph)

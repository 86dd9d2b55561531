"""Opening: compound operators and fused kernels become kernels of one statement."""

from __future__ import annotations

import pytest

from daceopt import ops
from daceopt.ir.graph.graph import Graph
from daceopt.ir.interpreter.interpret import interpret
from daceopt.transformations.local.map_fusion import MapFusion
from daceopt.transformations.partition.compound_opening import CompoundOpening
from tests.numerics import assert_within_rounding
from tests.transformations.graphs import Net, random_inputs
from tests.transformations.lowered import apply

SHAPE = (4, 6)


def compound(op: str) -> Graph:
    net = Net(opset=23, x=SHAPE, scale=SHAPE[-1:], shift=SHAPE[-1:])
    operands = {"LayerNormalization": [net.x, net.scale, net.shift], "RMSNormalization": [net.x, net.scale]}
    return net.done(net.op(op, *operands.get(op, [net.x]), axis=1, shape=SHAPE))


def statements(graph: Graph) -> list[int]:
    return [len(k.kernel.stages) for k in graph.kernels()]


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax", "LayerNormalization", "RMSNormalization"])
def test_operators(op: str) -> None:
    graph = compound(op)
    values = random_inputs(graph)
    expected = interpret(graph.copy(), values, dtype=float)[graph.outputs[0]]
    assert CompoundOpening().run(graph).sites == [op]
    assert not graph.operators() and set(statements(graph)) == {1} and len(statements(graph)) >= 3
    assert_within_rounding(interpret(graph, values, dtype=float)[graph.outputs[0]], expected)


def test_a_loss() -> None:
    net = Net(x=SHAPE)
    target = net.const([1, 0, 3, 5], "int64")
    graph = net.done(net.op("SoftmaxCrossEntropyLoss", net.x, target, shape=()))
    CompoundOpening().run(graph)
    assert not graph.operators() and set(statements(graph)) == {1}


def test_fused_kernels() -> None:
    graph = compound("Softmax")
    ops.lower_all(graph)
    MapFusion().run(graph)
    assert statements(graph) == [4]
    assert apply(CompoundOpening(stages=False), graph).sites == []
    assert len(apply(CompoundOpening(), graph).sites) == 1
    assert statements(graph) == [1, 1, 1, 1]
    assert apply(CompoundOpening(), graph).sites == []


def test_a_limit_opens_as_many() -> None:
    net = Net(x=SHAPE)
    graph = net.done(net.op("Softmax", net.op("LogSoftmax", net.x, axis=1), axis=1))
    assert len(CompoundOpening().run(graph, limit=1).sites) == 1
    assert len(graph.operators()) == 1

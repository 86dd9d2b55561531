"""One graph inside of another: kernels, views, parts, library nodes, regions, constants and the seed."""

from __future__ import annotations

import dace
import numpy as np
import pytest
import sympy

import daceopt.ops  # noqa: F401  (registers how library nodes are interpreted)
from daceopt.ir.control.region_builder import LoopBuilder
from daceopt.ir.data.arrays import SEED
from daceopt.ir.graph.grafting import graft
from daceopt.ir.graph.graph import Graph
from daceopt.ir.interpreter.interpret import interpret
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.scalar import scalar
from tests.ir.graph_text_checking import read_back

CONSTANT = np.arange(4, dtype=np.float32)


def sample(constant: np.ndarray = CONSTANT) -> Graph:
    """Of everything that a graph may have something, over two inputs."""
    graph = Graph("sample")
    b = Builder(graph)
    x, w = graph.add_input("x", (3, 4), dace.float32), graph.add_input("w", (4, 4), dace.float32)
    scaled = b.elementwise(lambda v, c: v * c, b.matmul(x, b.transpose(w, (1, 0))), b.constant(constant))
    drawn = b.elementwise(lambda v, s: v + scalar.uniform(s, 7, 0), scaled, graph.seed(), dtype=dace.float32)
    whole = graph.add_array("whole", (3, 8), dace.float32)
    for k, fn in enumerate((sympy.tanh, sympy.exp)):
        b.elementwise(fn, drawn, out=graph.add_part(whole, "half", (0, 4 * k), (3, 4)))
    graph.add_output(whole)
    total = graph.add_array("total", (3, 1), dace.float32)
    loop = LoopBuilder(graph, "halving")
    state = loop.carry(b.reduce("sum", None, whole, axes=(1,), keepdims=True))
    loop.finish([loop.b.elementwise(lambda s: s / 2, state)], [total], [], trips=3)
    graph.add_output(total)
    return graph


def test_what_is_grafted_computes_the_same() -> None:
    graph, other = sample(), sample()
    (x, w), (whole, total) = graph.inputs, graph.outputs
    twice = Builder(graph).elementwise(lambda v: 2 * v, x)
    names = graft(graph, other, {other.inputs[0]: twice, other.inputs[1]: w})
    for name in other.outputs:
        graph.add_output(names[name])
    read_back(graph)
    rng = np.random.default_rng(0)
    values = {n: rng.standard_normal(graph.shape(n)).astype(np.float32) for n in graph.inputs}
    found = interpret(graph, {**values, SEED: np.full(1, 5)})
    alone = interpret(other, {other.inputs[0]: 2 * values[x], other.inputs[1]: values[w], SEED: np.full(1, 5)})
    for name in other.outputs:
        np.testing.assert_array_equal(found[names[name]], alone[name])
        assert names[name] not in (whole, total)
    np.testing.assert_array_equal(found[whole], interpret(sample(), {**values, SEED: np.full(1, 5)})[whole])


def test_constants_that_are_the_same_stand_once() -> None:
    graph = sample()
    other = graph.copy()
    before = len(graph.constants)
    graft(graph, other, dict(zip(other.inputs, graph.inputs)))
    assert len(graph.constants) == before
    graft(graph, apart := sample(CONSTANT + 1), dict(zip(apart.inputs, graph.inputs)))
    assert len(graph.constants) == before + 1


def test_every_input_is_given() -> None:
    graph, other = sample(), sample()
    with pytest.raises(ValueError, match="expected an array for each input"):
        graft(graph, other, {other.inputs[0]: graph.inputs[0]})

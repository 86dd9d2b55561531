"""What is split runs as compiled code: kernels that write parts, in the schedules of the recipe."""

from __future__ import annotations

from pathlib import Path

import dace
import numpy as np
import sympy

from daceopt.ir.graph.graph import Graph
from daceopt.ir.interpreter.interpret import interpret
from daceopt.ir.nodes.builder import Builder
from daceopt.splits import split
from tests.codegen.cpu.kernels import run

F = dace.float32


def test_parts_are_written_where_they_stand(tmp_path: Path) -> None:
    """A softmax of two row parts of different extent, over a matrix that is put together from columns."""
    graph = Graph("split")
    b = Builder(graph, "v")
    x, y = graph.add_input("x", (37, 100), F), graph.add_input("y", (37, 33), F)
    whole = graph.add_array("w", (37, 133), F)
    b.elementwise(lambda v: sympy.tanh(v), x, out=graph.add_part(whole, "p", [0, 0], [37, 100]))
    b.elementwise(lambda v: v * v, b.slice(y, [32], [-1], steps=[-1], axes=[1]),
                  out=graph.add_part(whole, "p", [0, 100], [37, 33]))  # fmt: skip
    top = b.reduce("max", None, whole, axes=(-1,), keepdims=True)
    graph.add_output(b.elementwise(lambda v, m: sympy.exp(v - m), whole, top))
    split(graph, graph.producer(graph.outputs[0]), 0, [5, 32])
    split(graph, graph.producer(top), 0, 3)
    graph.validate()
    rng = np.random.default_rng(0)
    inputs = {n: rng.standard_normal(graph.shape(n)).astype(np.float32) for n in graph.inputs}
    (expected,) = interpret(graph, inputs, np.float64).values()
    found = run(graph, inputs, tmp_path)[graph.outputs[0]]
    np.testing.assert_allclose(found, expected, rtol=4e-6)

"""A scheduled kernel is executed as its schedule says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import dace
import numpy as np
import pytest
import sympy

from daceopt import recipes
from daceopt.ir.edits.loops import loops_of
from daceopt.ir.edits.schedule_edits import split
from daceopt.ir.graph.graph import Graph
from daceopt.ir.interpreter import interpret_schedule
from daceopt.ir.interpreter.buffers import Memory
from daceopt.ir.interpreter.interpret import interpret
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.scalar import scalar
from daceopt.ir.schedule.schedule import add_accumulators
from daceopt.passes.runner import Runner

F = dace.float32
N = dace.symbolic.symbol("n", dace.int64)

CASES = {
    "elementwise": lambda b, x: b.elementwise(lambda v: sympy.exp(v) * 2, x),
    "rows": lambda b, x: b.reduce("sum", None, x, axes=(1,)),
    "columns": lambda b, x: b.reduce("max", None, x, axes=(0,)),
    "all": lambda b, x: b.reduce("sum", lambda v: v * v, x, axes=(0, 1)),
    "transposed": lambda b, x: b.copy(b.transpose(x, (1, 0))),
    "absolute": lambda b, x: b.elementwise(lambda v: scalar.select(v > 0, v, -v), x),
}


def _graph(build: Any, shape: tuple[Any, ...]) -> tuple[Graph, str]:
    graph = Graph("test")
    x = graph.add_input("x", shape, F)
    if N in shape:
        graph.symbols["n"] = (x, shape.index(N))
    graph.add_output(build(Builder(graph), x))
    return graph, x


@pytest.mark.parametrize("shape", [(3, 5), (70, 40), (20, 5000), (5000, 20), (0, 4), (1, 1), (N, 70), (40, N)])
@pytest.mark.parametrize("name", list(CASES))
def test_the_schedule_of_the_recipe_computes_what_the_statements_say(name: str, shape: tuple[Any, ...]) -> None:
    graph, x = _graph(CASES[name], shape)
    extents = [77 if e is N else e for e in shape]
    data = np.random.default_rng(0).standard_normal(extents).astype(np.float32)
    expected = interpret(graph, {x: data}, dtype=np.float64)
    Runner(recipes.get("cpu"), "structure").run(graph, levels=("hardware",))
    memory = Memory(graph, {x: data}, reference=True)
    assert all(interpret_schedule.can_run(memory, e.kernel) for e in graph.kernels() if e.tree is not None)
    for ours, theirs in zip(interpret(graph, {x: data}, dtype=np.float64).values(), expected.values()):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12)


def test_a_dropped_tile_changes_the_result() -> None:
    graph, x = _graph(CASES["all"], (30, 7))
    (entry,) = graph.kernels()
    tree = split(loops_of(graph, entry).tree, "i0", 8)
    wrong = replace(tree, extent=3)  # the partial tile is lost
    entry.kernel = replace(entry.kernel, schedule=add_accumulators(wrong, entry.kernel))
    data = np.ones((30, 7), np.float32)
    assert [float(v) for v in interpret(graph, {x: data}).values()] == [3 * 8 * 7]

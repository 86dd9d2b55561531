"""Random graphs, some of whose arrays are written in parts, through the whole recipe and through differentiation."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest

from daceopt import recipes
from daceopt.autodiff import differentiate
from daceopt.autodiff.storage import Storage
from daceopt.errors import Unsupported
from daceopt.ir.graph.graph import Graph
from daceopt.ir.interpreter.interpret import interpret
from daceopt.ops import lower_all
from daceopt.passes.runner import Runner
from daceopt.splits import CannotSplit, split
from tests.properties.graphs import Maker


def _pair(seed: int, kind: str = "small") -> tuple[Graph, Graph, int]:
    """A lowered random graph, and one in which every other node is split; how many are."""
    graph = Maker(seed, kind).build()
    lower_all(graph)
    twin, done = graph.copy(), 0
    rng = np.random.default_rng(seed)
    for node in twin.nodes():
        shape = twin.shape(next(n for n in twin.outputs_of(node) if n))
        axes = [k for k, n in enumerate(shape) if isinstance(n, int) and n > 1]
        if axes and rng.integers(2):
            with suppress(CannotSplit):
                done += bool(split(twin, node, int(rng.choice(axes)), 2))
    twin.validate()
    return graph, twin, done


def _values(graph: Graph, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    found = interpret(graph, inputs, np.float64)
    return [found[n] for n in graph.outputs]


def _close(ours: list[np.ndarray], expected: list[np.ndarray]) -> None:
    for a, e in zip(ours, expected, strict=True):
        np.testing.assert_allclose(a, e, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("seed", range(10))
def test_every_step_of_the_recipe_takes_parts(seed: int) -> None:
    graph, twin, _ = _pair(seed)
    rng = np.random.default_rng(seed)
    inputs = {n: rng.standard_normal(graph.shape(n)) for n in graph.inputs}
    expected = _values(graph, inputs)
    recipe = recipes.get("cpu").without("part-writing").after("epilogue-fusion", "part-writing{least=0}")
    Runner(recipe).run(twin)
    twin.validate()
    _close(_values(twin, inputs), expected)


@pytest.mark.parametrize("seed", range(10))
def test_gradients_of_parts_are_those_of_whole_arrays(seed: int) -> None:
    graph, twin, _ = _pair(seed)
    rng = np.random.default_rng(seed)
    inputs = {n: rng.standard_normal(graph.shape(n)) for n in graph.inputs}
    seeds = [rng.standard_normal(graph.shape(n)) for n in graph.outputs]
    results = []
    for one in (graph, twin):
        try:
            found = differentiate(one, one.outputs, one.inputs, storage=Storage(("recompute", "store")[seed % 2]))
        except Unsupported:
            return
        for part in (found.forward, found.backward):
            lower_all(part)
            Runner(recipes.get("cpu")).run(part)
        forward = interpret(found.forward, inputs, np.float64)
        given = {g: seeds[one.outputs.index(n)] for n, g in found.grad_outputs.items()}
        given |= {n: forward[n] for n in found.saved} | {n: inputs[n] for n in found.forward_inputs_needed}
        back = interpret(found.backward, given, np.float64)
        results.append([back[g] for n in one.inputs if (g := found.grad_inputs[n]) is not None])
    _close(results[1], results[0])


def test_most_graphs_have_parts() -> None:
    assert sum(_pair(seed)[2] > 0 for seed in range(10)) >= 6

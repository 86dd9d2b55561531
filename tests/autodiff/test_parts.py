"""Gradients of arrays that are written in parts: views of the gradient of the whole, and what is stored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dace
import numpy as np
import pytest
import sympy

from daceopt.autodiff import differentiate
from daceopt.autodiff.storage import Storage
from daceopt.ir.graph.graph import Graph
from daceopt.ir.interpreter.interpret import interpret
from daceopt.ir.nodes.builder import Builder
from daceopt.ops import lower_all
from transformations.local.map_fusion import MapFusion

F = dace.float32
Join = Callable[[Builder, list[Any], int, Any], str]


def _in_parts(b: Builder, makers: list[Any], axis: int, shape: Any) -> str:
    """Each maker writes its part of the result."""
    whole, start = b.graph.add_array("w", shape, F), 0
    for make, extent in makers:
        starts, extents = [0] * len(shape), list(shape)
        starts[axis], extents[axis] = start, extent
        make(b.graph.add_part(whole, "p", starts, extents))
        start += extent
    return whole


def _by_concat(b: Builder, makers: list[Any], axis: int, shape: Any) -> str:
    whole, names = b.graph.add_array("w", shape, F), []
    for make, extent in makers:
        names.append(b.graph.add_array("p", [*shape[:axis], extent, *shape[axis + 1 :]], F))
        make(names[-1])
    b.graph.add_operator("Concat", names, [whole], {"axis": axis})
    return whole


def _model(join: Join, axis: int) -> Graph:
    """Products of a joined array, of one of its parts, and of a view of it."""
    graph = Graph("joined")
    b = Builder(graph, "v")
    shape = (6, 6)
    one = [2, 6] if axis == 0 else [6, 2]
    x, y = graph.add_input("x", one, F), graph.add_input("y", (6, 6), F)
    rest = b.slice(y, [1], [5], axes=[axis])
    made: list[str] = []

    def first(out: str) -> None:
        made.append(b.elementwise(lambda v: sympy.tanh(v) * v, x, out=out))

    makers = [(first, 2), (lambda out: b.elementwise(lambda v: v * v + 1, rest, out=out), 4)]
    whole = join(b, makers, axis, shape)
    again = b.elementwise(lambda v: v * v, made[0])
    turned = b.elementwise(lambda v, w: v * w, b.transpose(whole, (1, 0)), b.matmul(whole, y))
    graph.add_output(turned)
    graph.add_output(b.reduce("sum", None, again, axes=(0, 1)))
    graph.add_output(whole)
    return graph


def _gradients(graph: Graph, policy: str, fuse: bool = False) -> list[np.ndarray]:
    wanted = list(graph.inputs)
    found = differentiate(graph, graph.outputs, wanted, storage=Storage(policy))
    for part in (found.forward, found.backward):
        lower_all(part)
        if fuse:
            MapFusion().run(part)
        part.validate()
    rng = np.random.default_rng(1)
    inputs = {n: rng.standard_normal(graph.shape(n)) for n in graph.inputs}
    values = interpret(found.forward, inputs, np.float64)
    seeds = {g: rng.standard_normal(graph.shape(n)) for n, g in found.grad_outputs.items()}
    given = {**seeds, **{n: values[n] for n in found.saved}, **{n: inputs[n] for n in found.forward_inputs_needed}}
    back = interpret(found.backward, given, np.float64)
    return [back[str(found.grad_inputs[n])] for n in wanted]


@pytest.mark.parametrize("fuse", [False, True])
@pytest.mark.parametrize("policy", ["recompute", "store"])
@pytest.mark.parametrize("axis", [0, 1])
def test_the_gradient_of_parts_is_that_of_a_concatenation(axis: int, policy: str, fuse: bool) -> None:
    ours, expected = _gradients(_model(_in_parts, axis), policy, fuse), _gradients(_model(_by_concat, axis), policy)
    for a, e in zip(ours, expected, strict=True):
        assert np.abs(e).max() > 0.1
        np.testing.assert_allclose(a, e, rtol=1e-12, atol=1e-12)


def test_what_is_stored_is_the_whole() -> None:
    graph = _model(_in_parts, 0)
    found = differentiate(graph, graph.outputs, graph.inputs, storage=Storage("store"))
    (whole,) = {graph.part(n).whole for n in graph.arrays() if graph.is_part(n)}
    assert whole in found.saved and not any(graph.is_part(n) for n in found.saved)
    assert not any(found.backward.is_part(n) for n in found.backward.arrays())

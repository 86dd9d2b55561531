"""Concatenations, padding and gradients of slices without a copy: the same numbers, less moved, and reasons why not."""

from __future__ import annotations

from collections.abc import Callable

import dace
import numpy as np
import pytest
import sympy

from daceopt.autodiff import differentiate
from daceopt.cost import data_movement
from daceopt.ir.graph.graph import Graph
from daceopt.ir.interpreter.interpret import interpret
from daceopt.ir.nodes import library
from daceopt.ir.nodes.builder import Builder
from daceopt.ops import lower_all
from tests.properties.graphs import Maker
from transformations.local.map_fusion import MapFusion
from transformations.local.part_writing import PartWriting

F = dace.float32
Make = Callable[[Builder, str], str]


def _tanh(b: Builder, x: str) -> str:
    return b.elementwise(lambda v: sympy.tanh(v), x, label="tanh")


def _concat(*makers: Make, axis: int = 0, shape: tuple[int, ...] = (8, 16), read: bool = True) -> Graph:
    """y = [f(x0), g(x1), ...], and a product that reads it."""
    graph = Graph("joined")
    graph.source.opset[""] = 21
    b = Builder(graph, "v")
    names = [make(b, graph.add_input("x", shape, F)) for make in makers]
    names += [graph.add_input("x", shape, F)] if len(names) == 1 else []
    full = list(shape)
    full[axis] *= len(names)
    whole = graph.add_array("whole", full, F)
    graph.add_operator("Concat", names, [whole], {"axis": axis})
    out = b.matmul(whole, b.transpose(graph.add_input("w", (3, full[1]), F), (1, 0))) if read else whole
    graph.add_output(out)
    lower_all(graph)
    return graph


def _inputs(graph: Graph) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(2)
    return {n: rng.standard_normal(graph.shape(n)) for n in graph.inputs}


def _apply(graph: Graph, least: int = 0) -> tuple[list[str], str]:
    """Sites and near misses of a run that computes the same afterwards."""
    before = interpret(graph, _inputs(graph), np.float64)
    outcome = PartWriting(least=least).run(graph)
    graph.validate()
    for name, value in interpret(graph, _inputs(graph), np.float64).items():
        np.testing.assert_array_equal(value, before[name])
    return list(dict.fromkeys(outcome.sites)), "\n".join(outcome.near_misses)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("read", [True, False])
def test_producers_write_where_the_result_stands(axis: int, read: bool) -> None:
    graph = _concat(_tanh, _tanh, _tanh, axis=axis, read=read)
    moved = data_movement(graph).total
    assert _apply(graph)[0] == ["concat"]
    assert [n.label for n in graph.nodes()][:3] == ["tanh"] * 3 and len(graph.nodes()) == 3 + read
    assert moved - data_movement(graph).total == 2 * 4 * 3 * 8 * 16
    assert _apply(graph)[0] == []


def test_an_array_that_others_read_too_is_read_in_its_part() -> None:
    graph = _concat(_tanh, _tanh)
    first = graph.outputs_of(graph.nodes()[0])[0]
    b = Builder(graph, "v")
    graph.add_output(b.reduce("sum", None, b.transpose(first, (1, 0)), axes=(1,)))
    assert _apply(graph)[0] == ["concat"] and graph.is_part(first)


def test_products_and_pools_write_parts() -> None:
    graph = _concat(lambda b, x: b.matmul(x, x), _tanh, axis=1, shape=(8, 8))
    assert _apply(graph)[0] == ["concat"] and all(graph.is_part(graph.outputs_of(n)[0]) for n in graph.nodes()[:2])


def test_what_cannot_stand_there_is_copied() -> None:
    graph = _concat(lambda b, x: x, _tanh, _tanh)
    assert _apply(graph)[0] == ["concat"]
    assert sorted(n.label for n in graph.nodes()) == ["concat", "tanh", "tanh", "v"]


@pytest.mark.parametrize("reason", ["saved for the backward graph", "an input, output or constant", "a view"])
def test_near_misses_say_why(reason: str) -> None:
    graph = _concat(lambda b, x: b.transpose(_tanh(b, x), (1, 0)) if reason == "a view" else _tanh(b, x), shape=(8, 8))
    second = graph.outputs_of(graph.nodes()[0])[0]
    if reason.startswith("saved"):
        graph.saved.append(second)
    elif reason.startswith("an input"):
        graph.add_output(second)
    assert reason in _apply(graph)[1]


def test_convolutions_write_and_read_parts_that_are_dense_only() -> None:
    def make(batch: int) -> Graph:
        graph = Graph("images")
        graph.source.opset[""] = 21
        b = Builder(graph, "v")
        x = graph.add_input("x", (batch, 3, 8, 8), F)
        w = graph.add_input("w", (4, 3, 1, 1), F)
        y = graph.add_array("y", (batch, 4, 8, 8), F)
        b.library(library.Convolution, {"X": x, "W": w}, {"Y": y})
        whole = graph.add_array("whole", (batch, 7, 8, 8), F)
        graph.add_operator("Concat", [y, b.elementwise(lambda v: v * v, x)], [whole], {"axis": 1})
        graph.add_output(whole)
        lower_all(graph)
        return graph

    one, two = make(1), make(2)
    assert _apply(one)[0] == ["concat"] and all(n.label != "concat" for n in one.nodes())
    sites, misses = _apply(two)
    assert sites == [] and "in other strides" in misses


def test_small_arrays_are_not_worth_a_kernel() -> None:
    assert _apply(_concat(_tanh, _tanh), least=1 << 16)[0] == []


def test_padding_of_one_axis_writes_the_middle_in_place() -> None:
    graph = Graph("padded")
    graph.source.opset[""] = 21
    b = Builder(graph, "v")
    x = _tanh(b, graph.add_input("x", (4, 32), F))
    out = graph.add_array("out", (4, 40), F)
    pads = graph.add_constant("pads", np.array([0, 3, 0, 5]))
    graph.add_operator("Pad", [x, pads], [out])
    graph.add_output(out)
    lower_all(graph)
    assert _apply(graph)[0] == ["pad"] and graph.is_part(x) and len(graph.nodes()) == 3


def test_the_gradient_of_slices_is_put_together_in_place() -> None:
    """What computes the gradients of the halves writes them where they stand: no zeros, no sum."""
    graph = Graph("halves")
    b = Builder(graph, "v")
    x, w = graph.add_input("x", (8, 16), F), graph.add_input("w", (8, 8), F)
    first, second = b.slice(x, [0], [8], axes=[1]), b.slice(x, [8], [16], axes=[1])
    graph.add_output(b.elementwise(lambda v, w: sympy.tanh(v) * w, b.matmul(w, first), second))
    backward = differentiate(graph, graph.outputs, [x]).backward
    MapFusion().run(backward)
    (whole,) = backward.outputs
    assert len(backward.parts_of(whole)) == 2
    assert len(backward.nodes()) == 3  # the kernel writes one half in place; the product is copied
    _apply(backward)
    assert len(backward.nodes()) == 2 and all(
        any(backward.is_part(str(n)) for n in backward.outputs_of(node)) for node in backward.nodes()
    )


@pytest.mark.parametrize("seed", range(16))
def test_random_graphs_compute_the_same(seed: int) -> None:
    graph = Maker(seed).build()
    lower_all(graph)
    _apply(graph)
    MapFusion().run(graph)
    graph.validate()


def test_open_extents_beside_the_axis() -> None:
    size = dace.symbolic.symbol("n", dace.int64)
    graph = Graph("open")
    b = Builder(graph, "v")
    x, y = graph.add_input("x", (size, 4), F), graph.add_input("y", (size, 3), F)
    graph.symbols["n"] = (x, 0)
    whole = graph.add_array("whole", (size, 7), F)
    graph.add_operator("Concat", [_tanh(b, x), _tanh(b, y)], [whole], {"axis": 1})
    graph.add_output(whole)
    lower_all(graph)
    inputs = {x: np.ones((5, 4)), y: np.full((5, 3), 2.0)}
    before = interpret(graph, inputs, np.float64)[whole]
    assert PartWriting(least=0).run(graph).sites and len(graph.nodes()) == 2
    graph.validate()
    np.testing.assert_array_equal(interpret(graph, inputs, np.float64)[whole], before)

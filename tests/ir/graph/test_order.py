"""The order of execution: legal, kept by edits, followed by the interpreter, the memory plan and the frame."""

from __future__ import annotations

import dace
import numpy as np
import pytest

from daceopt.codegen.frame import ProgramFrame
from daceopt.codegen.memory_plan import plan
from daceopt.errors import IllegalOrder
from daceopt.ir.graph.graph import Graph
from daceopt.ir.interpreter.interpret import interpret
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.text.render import render
from tests.properties.graphs import Maker
from transformations.local.map_fusion import MapFusion

F = dace.float32


def _diamond() -> tuple[Graph, list[str]]:
    """x -> a -> c, x -> b -> d, c + d"""
    graph = Graph("diamond")
    b = Builder(graph, "v")
    x = graph.add_input("x", (8, 8), F)
    first = b.elementwise(lambda v: v + 1, x, label="first")
    second = b.elementwise(lambda v: v * 2, x, label="second")
    sums = b.reduce("sum", None, first, axes=(0,), label="sums")
    more = b.reduce("sum", lambda v: v + 3, second, axes=(0,), label="more")
    graph.add_output(b.elementwise(lambda v, w: v + w, sums, more, label="last"))
    return graph, [first, second, sums, more, graph.outputs[0]]


def _labels(graph: Graph) -> list[str]:
    return [n.label for n in graph.nodes()]


def _by_label(graph: Graph, *labels: str) -> list[object]:
    return [next(n for n in graph.nodes() if n.label == label) for label in labels]


def test_nodes_run_in_the_order_that_was_asked_for() -> None:
    graph, _ = _diamond()
    assert _labels(graph) == ["first", "second", "sums", "more", "last"]
    graph.order = _by_label(graph, "second", "more", "first", "sums", "last")
    graph.validate()
    assert _labels(graph) == ["second", "more", "first", "sums", "last"]
    assert [line.split()[-1] for line in render(graph).splitlines() if " = kernel " in line] == _labels(graph)
    graph.order = None
    assert _labels(graph) == ["first", "second", "sums", "more", "last"]


def test_the_frame_and_the_arena_follow_it() -> None:
    graph, (first, second, *_) = _diamond()
    together = plan(graph)
    graph.order = _by_label(graph, "second", "more", "first", "sums", "last")
    frame = ProgramFrame(graph)
    places = [frame.body.index(f"{frame.calls[n]}(") for n in graph.nodes()]
    assert places == sorted(places)
    apart = plan(graph)
    assert together.arena[first] != together.arena[second]  # both are read later
    assert apart.arena[first] == apart.arena[second] and apart.arena_bytes < together.arena_bytes


def test_what_is_no_legal_order_is_refused_with_the_names() -> None:
    graph, (first, _, sums, *_) = _diamond()
    a, b, c, d, e = graph.nodes()
    with pytest.raises(IllegalOrder, match=rf"sums \({sums}\) reads {first}, which first \({first}\) writes"):
        graph.order = [c, a, b, d, e]
    with pytest.raises(IllegalOrder, match=rf"sums \({sums}\), last .* does not run"):
        graph.order = [a, b, d]
    with pytest.raises(IllegalOrder, match=rf"first \({first}\) runs twice"):
        graph.order = [a, b, a, c, d, e]
    with pytest.raises(IllegalOrder, match="first is no node of it"):
        graph.order = _diamond()[0].nodes()
    assert graph.nodes() == [a, b, c, d, e]


def test_validate_finds_an_order_that_edits_past_the_graph_have_made_illegal() -> None:
    graph, (first, _, _, more, _) = _diamond()
    graph.order = graph.nodes()
    reader = graph.producer(first)
    reader.add_in_connector("late")
    graph.def_use.read(reader, "late", more)
    with pytest.raises(IllegalOrder, match=rf"first \({first}\) reads {more}, which more"):
        graph.validate()


def test_new_nodes_take_a_place_before_their_first_reader() -> None:
    graph, (first, *_) = _diamond()
    graph.order = _by_label(graph, "second", "more", "first", "sums", "last")
    before = Builder(graph).elementwise(lambda v: v - 1, graph.inputs[0], label="before")
    graph.remove(graph.producer(first))
    Builder(graph).elementwise(lambda v: v + 2, before, out=first, label="instead")
    assert _labels(graph) == ["second", "more", "before", "instead", "sums", "last"]
    unread = Builder(graph).elementwise(lambda v: v + 2, first, label="unread")
    assert _labels(graph)[-1] == "unread" and unread
    graph.validate()


def test_it_survives_copies_fusion_and_replacement_of_uses() -> None:
    graph, (first, second, *_) = _diamond()
    graph.order = _by_label(graph, "second", "more", "first", "sums", "last")
    twin = graph.copy()
    assert _labels(twin) == _labels(graph)
    twin.order = None
    assert _labels(twin) != _labels(graph)
    graph.replace_uses(second, first)  # more now reads what first writes
    graph.prune()
    assert _labels(graph) == ["first", "more", "sums", "last"]
    graph.validate()
    MapFusion().run(graph)
    graph.validate()


@pytest.mark.parametrize("seed", range(12))
def test_any_legal_order_computes_the_same(seed: int) -> None:
    graph = Maker(seed).build()
    rng = np.random.default_rng(seed)
    inputs = {n: rng.standard_normal(graph.shape(n)) for n in graph.inputs}
    expected = interpret(graph, inputs, np.float64)
    graph.order = _shuffled(graph, rng)
    graph.validate()
    for name, value in interpret(graph, inputs, np.float64).items():
        np.testing.assert_array_equal(value, expected[name])
    MapFusion().run(graph)
    graph.validate()
    for name, value in zip(expected.values(), interpret(graph, inputs, np.float64).values(), strict=True):
        np.testing.assert_allclose(value, name, rtol=1e-12, atol=1e-12)


def _shuffled(graph: Graph, rng: np.random.Generator) -> list[object]:
    left, order = graph.nodes(), []
    while left:
        ready = [n for n in left if not any(p in left for r in graph.inputs_of(n) for p in graph.producers(r))]
        order.append(ready[int(rng.integers(len(ready)))])
        left.remove(order[-1])
    return order

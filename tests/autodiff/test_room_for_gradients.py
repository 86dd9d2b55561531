"""What is not saved, so that gradients find room."""

from __future__ import annotations

import dace
import numpy as np
import sympy

from daceopt.autodiff import Derivative, differentiate
from daceopt.autodiff.storage import Storage
from daceopt.ir.graph.graph import Graph
from daceopt.ir.interpreter.interpret import interpret
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.nodes.library import Contraction

WIDTH = 8


def _network(rows: int, depth: int = 4) -> Graph:
    """sin of products, each of which the gradient of the sine reads, and the sines are what the next product reads."""
    graph = Graph("network")
    b = Builder(graph)
    x = graph.add_input("x", (rows, WIDTH), dace.float64)
    for _ in range(depth):
        w = graph.add_input("w", (WIDTH, WIDTH), dace.float64)
        x = str(b.elementwise(sympy.sin, b.matmul(x, w)))
    graph.add_output(x)
    return graph


def _derived(graph: Graph, makes_room: bool, **storage: object) -> Derivative:
    return differentiate(graph, graph.outputs, graph.inputs[1:], Storage(makes_room=makes_room, **storage))  # type: ignore[arg-type]


def _bytes(derivative: Derivative) -> int:
    return sum(8 * int(derivative.forward.size(n)) for n in derivative.saved)


def _gradients(graph: Graph, derivative: Derivative) -> list[np.ndarray]:
    rng = np.random.default_rng(3)
    feeds = {n: rng.standard_normal(graph.shape(n)) for n in graph.inputs}
    done = interpret(derivative.forward, feeds)
    given = {n: done[n] for n in derivative.saved} | {n: feeds[n] for n in derivative.forward_inputs_needed}
    seeds = {g: np.ones(graph.shape(n)) for n, g in derivative.grad_outputs.items()}
    found = interpret(derivative.backward, seeds | given)
    return [found[g] for g in derivative.grad_inputs.values() if g is not None]


def test_as_many_bytes_as_the_gradients_take_are_not_saved() -> None:
    graph = _network(rows=16)
    plain, thrifty = _derived(graph, False), _derived(graph, True)
    gradients = 8 * 4 * WIDTH * WIDTH
    assert gradients <= _bytes(plain) - _bytes(thrifty)
    sizes = {plain.forward.size(n) for n in plain.saved if n not in thrifty.saved}
    assert sizes == {16 * WIDTH}  # arrays of one size are those of equal layers: of all of these or of none
    assert set(thrifty.saved) < set(plain.saved)  # and nothing else is saved for it
    for ours, expected in zip(_gradients(graph, thrifty), _gradients(graph, plain), strict=True):
        np.testing.assert_array_equal(ours, expected)


def test_small_gradients_change_nothing() -> None:
    graph = _network(rows=4096)
    assert _derived(graph, True).saved == _derived(graph, False).saved


def test_no_more_is_computed_again_than_cheap_nodes() -> None:
    graph = _network(rows=2)
    plain, thrifty = _derived(graph, False), _derived(graph, True)
    made = {n: plain.forward.producer(n) for n in plain.saved}
    products = {n for n, node in made.items() if isinstance(node, Contraction)}
    assert products and products <= set(thrifty.saved)


def test_what_somebody_asks_for_is_left_alone() -> None:
    graph = _network(rows=16)
    assert _derived(graph, True, policy="store").saved == _derived(graph, False, policy="store").saved
    named = _derived(graph, False, store=("*",))
    assert _derived(graph, True, store=("*",)).saved == named.saved


def test_statistics_come_and_go_with_what_they_normalize() -> None:
    """A result that is computed again brings its node's others along; alone they are too small to be worth it."""
    graph = Graph("network")
    b = Builder(graph)
    x = graph.add_input("x", (16, WIDTH), dace.float64)
    for _ in range(3):
        w = graph.add_input("w", (WIDTH, WIDTH), dace.float64)
        scale = graph.add_input("scale", (WIDTH,), dace.float64)
        y = graph.add_array("y", (16, WIDTH), dace.float64)
        graph.add_operator("LayerNormalization", [x, scale], [y], {"axis": -1})
        x = str(b.elementwise(sympy.sin, b.matmul(y, w)))
    graph.add_output(x)
    plain, thrifty = _derived(graph, False), _derived(graph, True)
    statistics = {n for n in plain.saved if plain.forward.size(n) == 16}
    assert len(statistics) == 6 and not statistics <= set(thrifty.saved)
    for ours, expected in zip(_gradients(graph, thrifty), _gradients(graph, plain), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-12)

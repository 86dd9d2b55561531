"""Which weights a loop may keep: those that are the same in all of its iterations."""

from __future__ import annotations

from typing import Any

import dace
import pytest

from daceopt.ir.control.region import Repeat
from daceopt.ir.control.region_builder import LoopBuilder
from daceopt.ir.graph.graph import Graph
from daceopt.ir.nodes.library import Contraction, Convolution
from daceopt.ir.scalar import types
from daceopt.ir.scalar.symbols import size
from daceopt.ir.text.parse import parse
from daceopt.ir.text.render import render
from daceopt.libs import onednn
from daceopt.transformations.instances.weight_holding import WeightHolding

F, N = dace.float32, size("n")


def _nested(moving: bool = False, descending: bool = False) -> tuple[Graph, list[Any]]:
    """Two loops; in the inner one a convolution with weights from outside, and one whose weights the outer one makes
    (or slices, if ``moving``)."""
    graph = Graph("net")
    x, w = graph.add_input("x", (2, 3, 4, 4), F), graph.add_input("w", (5, 3, 3, 3, 3), F)
    fixed = graph.add_input("fixed", (3, 3, 3, 3), F)
    outer = LoopBuilder(graph, "outer")
    value = outer.carry(x)
    sliced = outer.slice_of(w, 0, outer.counter)
    own = sliced if moving else outer.b.elementwise(lambda v: v + 1, sliced)
    inner = LoopBuilder(outer.graph, "inner")
    state = inner.carry(value)
    for weights in (inner.capture(outer.capture(fixed)), inner.capture(own)):
        y = inner.graph.add_array("y", (2, 3, 4, 4), F)
        inner.b.library(Convolution, {"X": state, "W": weights}, {"Y": y}, pads=[1, 1, 1, 1])
        state = y
    last = outer.graph.add_array("last", (2, 3, 4, 4), F)
    inner.finish([state], [last], trips=3, descending=descending)
    result = graph.add_array("result", (2, 3, 4, 4), F)
    outer.finish([last], [result], trips=5)
    graph.add_output(result)
    return graph, [n for n in inner.graph.nodes() if isinstance(n, Convolution)]


def test_weights_are_held_over_the_loops_in_which_they_are_the_same() -> None:
    for moving in (False, True):
        graph, calls = _nested(moving)
        WeightHolding().run(graph)
        held = {tuple(call.held_over) for call in calls}
        assert ("step0", "step1") in held  # from outside of both
        assert held <= {("step0", "step1"), ("step1",), ()}


def test_factors_with_which_weights_are_prepared_are_the_same_as_well() -> None:
    graph = Graph("net")
    x, w, s = (
        graph.add_input("x", (2, 3, 4, 4), F),
        graph.add_input("w", (3, 3, 3, 3), F),
        graph.add_input("s", (3,), F),
    )
    outer = LoopBuilder(graph, "outer")
    value, own = outer.carry(x), outer.b.elementwise(lambda v: v + 1, outer.capture(s))
    inner = LoopBuilder(outer.graph, "inner")
    state, weights = inner.carry(value), inner.capture(outer.capture(w))
    for scale in (inner.capture(own), inner.capture(outer.capture(s))):
        y = inner.graph.add_array("y", (2, 3, 4, 4), F)
        node = Convolution(inputs=["X", "W", "S"], pads=[1] * 4)
        inner.b.attach(node, {"X": state, "W": weights, "S": scale}, {"Y": y})
        state = y
    last, result = (g.add_array("last", (2, 3, 4, 4), F) for g in (outer.graph, graph))
    inner.finish([state], [last], trips=3)
    outer.finish([last], [result], trips=5)
    graph.add_output(result)
    WeightHolding().run(graph)
    held = [tuple(n.held_over) for n in inner.graph.nodes() if isinstance(n, Convolution)]
    assert held == [("step1",), ("step0", "step1")]


def test_a_loop_that_counts_down_says_where_it_begins() -> None:
    graph, calls = _nested(descending=True)
    WeightHolding().run(graph)
    held = {tuple(call.held_over) for call in calls}
    assert ("step0", "step1 from 2") in held


def _loop(trips: Any = 16, rows: int = 2, weights: str = "shared", dtype: Any = F, descending: bool = False) -> Graph:
    """``h = h @ R^T``, over and over."""
    graph = Graph("loop")
    h = graph.add_input("h", (rows, 4), dtype)
    r = graph.add_input("r", {"shared": (4, 4), "sliced": (trips, 4, 4)}[weights], dtype)
    if not isinstance(trips, int):
        graph.symbols[str(trips)] = (graph.add_input("x", (trips,), dtype), 0)
    loop = LoopBuilder(graph, "loop")
    state = loop.carry(h)
    matrix = loop.capture(r) if weights == "shared" else loop.slice_of(r, 0, loop.counter)
    product = loop.b.matmul(state, loop.b.transpose(matrix, [1, 0]))
    final = graph.add_array("final", (rows, 4), dtype)
    loop.finish([product], [final], trips=trips, descending=descending)
    graph.add_output(final)
    return graph


def _held(graph: Graph) -> list[str]:
    (loop,) = (n for n in graph.nodes() if isinstance(n, Repeat))
    (product,) = (n for n in loop.body.nodes() if isinstance(n, Contraction))
    return list(product.held_over)


@pytest.mark.parametrize(
    ("options", "held"),
    [
        ({}, ["step0"]),
        ({"descending": True}, ["step0 from 15"]),
        ({"descending": True, "trips": N, "rows": 9}, ["step0 from n - 1"]),
        ({"dtype": dace.float64}, ["step0"]),
        ({"dtype": types.BFLOAT16}, ["step0"]),
        ({"weights": "sliced"}, []),  # another matrix in each iteration
    ],
)
def test_products_hold_the_factor_that_all_iterations_share(options: dict[str, Any], held: list[str]) -> None:
    graph = _loop(**options)
    WeightHolding().run(graph)
    assert _held(graph) == held
    again = parse(render(graph))
    assert _held(again) == held


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"trips": 15}, "30 rows in 15 iterations do not pay"),
        ({"rows": 513}, "513 rows hide"),
        ({"trips": 1, "rows": 64}, None),
        ({"dtype": dace.int32}, "nothing holds a factor of int"),
    ],
)
def test_products_that_hold_nothing(options: dict[str, Any], why: str | None) -> None:
    graph = _loop(**options)
    outcome = WeightHolding().run(graph)
    assert not _held(graph) and len(outcome.near_misses) == (why is not None)
    assert all(why is not None and why in miss for miss in outcome.near_misses)


def test_the_call_prepares_weights_in_the_first_iteration() -> None:
    node = Convolution()
    node.held_over = ["step0", "step1"]
    assert onednn.kept_weights(node, Graph("net")) == (
        "static thread_local daceopt::HeldWeights held; ",
        ", held.in(step0 == 0 && step1 == 0)",
    )
    assert onednn.kept_weights(Convolution(), Graph("net")) == ("", "")

"""Which weights a loop may keep: those that are the same in all of its iterations."""

from __future__ import annotations

from typing import Any

import dace

from daceopt.ir.graph import Graph
from daceopt.ir.nodes.library import Convolution
from daceopt.ir.region_builder import LoopBuilder
from daceopt.libs import onednn
from daceopt.transformations.instances.weight_holding import WeightHolding

F = dace.float32


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


def test_a_loop_that_counts_down_holds_nothing() -> None:
    graph, calls = _nested(descending=True)
    WeightHolding().run(graph)
    assert not any(call.held_over for call in calls)


def test_the_call_prepares_weights_in_the_first_iteration() -> None:
    node = Convolution()
    node.held_over = ["step0", "step1"]
    assert onednn._kept(node, Graph("net")) == (
        "static thread_local daceopt::HeldWeights held; ",
        ", held.in(step0 == 0 && step1 == 0)",
    )
    assert onednn._kept(Convolution(), Graph("net")) == ("", "")

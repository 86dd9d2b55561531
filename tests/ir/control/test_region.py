"""Regions: what they compute, what edits around them must keep, where their memory is."""

from __future__ import annotations

from typing import Any

import dace
import numpy as np
import pytest
import sympy

from daceopt.codegen import memory_plan, region_bounds
from daceopt.codegen.frame import ProgramFrame
from daceopt.cost import data_movement, flops
from daceopt.errors import DaceoptError, Unsupported
from daceopt.ir.control import region, region_settling
from daceopt.ir.control.region import Repeat, regions
from daceopt.ir.control.region_builder import ChoiceBuilder, LoopBuilder
from daceopt.ir.graph.graph import Graph
from daceopt.ir.interpreter.interpret import interpret
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.scalar import scalar
from daceopt.ir.text.render import render

STEPS = 5


def running_sum(reverse: bool = False, stride: int = 1) -> Graph:
    """h + x[0] + ... + x[t] for every t, and the last of them; ``x`` is read through a view with ``stride``."""
    graph = Graph("loop")
    h = graph.add_input("h", (3,), dace.float32)
    given = graph.add_input("x", (STEPS, 3 * stride), dace.float32)
    x = Builder(graph).slice(given, [0], [3 * stride], [stride], [1])
    last = graph.add_array("last", (3,), dace.float32)
    rows = graph.add_array("rows", (STEPS, 3), dace.float32)
    loop = LoopBuilder(graph, "sum")
    new = loop.b.elementwise(lambda s, u: s + u, loop.carry(h), loop.slice_of(x, 0, loop.counter))
    loop.finish([new], [last], [(new, rows, 0, reverse)], trips=STEPS)
    graph.add_output(last)
    graph.add_output(rows)
    graph.validate()
    return graph


def feeds(graph: Graph) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    return {n: rng.standard_normal(graph.shape(n)).astype(np.float32) for n in graph.inputs}


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("stride", [1, 2])
def test_carried_values_and_slices(reverse: bool, stride: int) -> None:
    graph = running_sum(reverse, stride)
    given = feeds(graph)
    h, x = given.values()
    rows = h + np.cumsum(x[:, ::stride], 0)
    for copy in (graph, graph.copy()):
        last, found = interpret(copy, given).values()
        np.testing.assert_allclose(last, rows[-1], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(found, rows[::-1] if reverse else rows, rtol=1e-5, atol=1e-6)


def test_a_copy_shares_no_body() -> None:
    graph = running_sum()
    twin = graph.copy()
    (mine,), (theirs,) = regions(graph), regions(twin)
    assert mine is not theirs and mine.bodies[0] is not theirs.bodies[0]
    theirs.bodies[0].remove(theirs.bodies[0].nodes()[0])
    graph.validate()
    assert len(mine.bodies[0].nodes()) == 2


def test_validation_looks_into_bodies() -> None:
    graph = running_sum()
    body = regions(graph)[0].bodies[0]
    body.outputs.append("nowhere")
    with pytest.raises(Exception, match="nowhere"):
        graph.validate()


def test_results_that_nobody_reads_are_dropped_with_what_they_need() -> None:
    graph = running_sum()
    graph.outputs = graph.outputs[:1]
    region.tidy(graph)
    (node,) = regions(graph)
    assert isinstance(node, Repeat) and not node.stacked and len(node.body.outputs) == 1
    graph.prune()
    graph.validate()
    assert len(graph.arrays()) == 4  # h, x, its view, last


def test_the_text_shows_the_body() -> None:
    text = render(running_sum())
    assert "for step0 < 5" in text and "carry" in text and "stack Out1 axis 0" in text
    assert text.count("view") == 2


def test_costs_count_iterations() -> None:
    graph = running_sum()
    (node,) = regions(graph)
    inside = data_movement(node.bodies[0])
    assert data_movement(graph).total == STEPS * inside.total
    assert flops(graph, node) == STEPS * sum(flops(node.bodies[0], n) for n in node.bodies[0].nodes())


def test_memory_of_bodies_stands_in_one_slot_of_the_arena() -> None:
    graph = running_sum()
    region_settling.settle(graph)
    plan = memory_plan.plan(graph)
    assert set(plan.arena) == {"R0_C0"} and plan.arena_bytes == 64
    frame = ProgramFrame(graph)
    assert "for (step0 = 0; step0 < INT64_C(5); ++step0) {" in frame.body
    assert "R0_C0" in frame.buffers


def test_a_body_follows_the_layout_of_its_operand() -> None:
    graph = running_sum(stride=2)
    region_settling.settle(graph)
    (node,) = regions(graph)
    inner = next(iter(node.captures[0]))
    assert node.bodies[0].strides(inner) == (6, 2)


def test_constants_of_bodies_move_out_and_meet() -> None:
    graph = Graph("choice")
    c, x = graph.add_input("c", (), dace.bool_), graph.add_input("x", (3,), dace.float32)
    k = graph.add_constant("k", np.arange(3, dtype=np.float32))
    choice = ChoiceBuilder(graph, "choice", c)
    for body in choice.bodies:
        body.declare_outputs([body.b.elementwise(lambda a, v: a * v, body.capture(x), body.capture(k))])
    out = graph.add_array("out", (3,), dace.float32)
    choice.finish([out])
    graph.add_output(out)
    graph.prune()
    region_settling.settle(graph)
    assert len(graph.constants) == 1 and not any(body.constants for body in region.bodies(graph))
    graph.validate()


def test_random_numbers_in_a_loop_are_refused() -> None:
    graph = Graph("noise")
    h, last = graph.add_input("h", (3,), dace.float32), graph.add_array("last", (3,), dace.float32)
    loop = LoopBuilder(graph, "loop")
    seed = loop.graph.seed()

    def noise(i: Any, s: Any, seed: Any) -> Any:
        return s + scalar.uniform(seed, 1, i[0])

    new = loop.graph.add_array("new", (3,), dace.float32)
    reads = {"s": (loop.carry(h), lambda *i: i), "seed": (seed, lambda *i: (0,))}
    loop.b.map((3,), reads, {"out": (new, lambda *i: i)}, noise)
    loop.finish([new], [last], trips=2)
    graph.add_output(last)
    with pytest.raises(Unsupported, match="random numbers"):
        region_settling.settle(graph)


@pytest.mark.parametrize(
    ("position", "complaint"),
    [
        (lambda t: t, None),
        (lambda t: 4 - t, None),
        (lambda t: t + 1, "may leave it"),
        (lambda t: 3 - t, "may leave it"),
        (lambda t: t * (4 - t), "does not move evenly"),
    ],
)
def test_positions_that_move_with_a_loop_are_proved(position: Any, complaint: str | None) -> None:
    graph = Graph("loop")
    x = graph.add_input("x", (STEPS, 3), dace.float32)
    rows = graph.add_array("rows", (STEPS, 3), dace.float32)
    loop = LoopBuilder(graph, "loop")
    new = loop.b.elementwise(lambda u: u + 1, loop.slice_of(x, 0, position(loop.counter)))
    loop.finish([], [], [(new, rows, 0, False)], trips=STEPS)
    graph.add_output(rows)
    if complaint is None:
        region_bounds.check(graph)
        return
    with pytest.raises(Unsupported, match=complaint):
        region_bounds.check(graph)


def test_positions_over_sizes_are_proved() -> None:
    graph = Graph("loop")
    size = dace.symbolic.symbol("s0", dace.int64)
    x = graph.add_input("x", (size, 3), dace.float32)
    graph.symbols["s0"] = (x, 0)
    rows = graph.add_array("rows", (size, 3), dace.float32)
    loop = LoopBuilder(graph, "loop")
    new = loop.b.elementwise(lambda u: u + 1, loop.slice_of(x, 0, size - 1 - loop.counter))
    loop.finish([], [], [(new, rows, 0, True)], trips=size)
    graph.add_output(rows)
    region_bounds.check(graph)
    assert data_movement(graph).total == sympy.Integer(24) * size
    value = np.arange(12, dtype=np.float32).reshape(4, 3)
    np.testing.assert_array_equal(interpret(graph, {x: value})[rows], value + 1)


@pytest.mark.parametrize(("width", "stays"), [(2, True), (3, False)])
def test_sizes_in_positions_may_be_0(width: int, stays: bool) -> None:
    """Rows of ``s0 + 2`` elements, of which the first ones are read: three of them leave the array where s0 is 0."""
    graph = Graph("loop")
    size = dace.symbolic.symbol("s0", dace.int64)
    x = graph.add_input("x", (STEPS, size + 2), dace.float32)
    rows = graph.add_array("rows", (STEPS, width), dace.float32)
    loop = LoopBuilder(graph, "loop")
    part = loop.graph.add_view(loop.slice_of(x, 0, loop.counter), "part", (width,), (1,), 0)
    loop.finish([], [], [(loop.b.elementwise(lambda u: u + 1, part), rows, 0, False)], trips=STEPS)
    graph.add_output(rows)
    if stays:
        region_bounds.check(graph)
        return
    with pytest.raises(Unsupported, match="may leave it"):
        region_bounds.check(graph)


def test_a_loop_that_is_longer_than_its_result_never_writes_beyond() -> None:
    graph = Graph("loop")
    x, n = graph.add_input("x", (3,), dace.float32), graph.add_input("n", (), dace.int64)
    rows = graph.add_array("rows", (2, 3), dace.float32)
    loop = LoopBuilder(graph, "loop")
    new = loop.b.elementwise(lambda u: u * 2, loop.capture(x))
    node = loop.finish([], [], [(new, rows, 0, False)], trips=n)
    graph.add_output(rows)
    assert node.is_checked
    for count, fits in ((2, True), (1, False), (3, False)):
        given = {x: np.ones(3, np.float32), n: np.array(count)}
        if fits:
            np.testing.assert_array_equal(interpret(graph, given)[rows], np.full((2, 3), 2))
        else:
            with pytest.raises(DaceoptError, match="iterations"):
                interpret(graph, given)

"""Iterations in pieces: the results are those of all at once, the memory that of a piece."""

from __future__ import annotations

import tracemalloc

import dace
import numpy as np
import pytest
import sympy

import daceopt.ops  # noqa: F401  (brings how operators are executed)
from daceopt.ir.graph.graph import Graph
from daceopt.ir.interpreter import interpret_pieces
from daceopt.ir.interpreter.interpret import interpret
from daceopt.ir.interpreter.interpret_pieces import Iterations, LowerBound, bounds_of
from daceopt.ir.kernel.kernel import Access, Kernel, Stage, param
from daceopt.ir.kernel.tasklet import Assignment
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.scalar import scalar


@pytest.mark.parametrize("kind", ["sum", "prod", "max", "min"])
@pytest.mark.parametrize("axes", [[0], [1], [0, 2], [0, 1, 2]], ids=str)
@pytest.mark.parametrize("most", [1, 3, 7, 1000])
def test_iterations_in_pieces(monkeypatch: pytest.MonkeyPatch, kind: str, axes: list[int], most: int) -> None:
    given = np.random.default_rng(0).normal(size=(3, 4, 5)).astype(np.float32)
    graph = Graph("test")
    b = Builder(graph)
    x = graph.add_input("x", (3, 4, 5), dace.float32)
    graph.add_output(b.reduce(kind, lambda v: v + 1, b.transpose(x, [2, 0, 1]), axes=axes))
    graph.add_output(b.elementwise(lambda v: v * 2, x))
    whole = interpret(graph, {x: given}, np.float64)
    monkeypatch.setattr(interpret_pieces, "MOST_ELEMENTS", most)
    found = interpret(graph, {x: given}, np.float64)
    for name in graph.outputs:
        np.testing.assert_allclose(found[name], whole[name], rtol=1e-14, atol=1e-14)


def test_pieces_are_collected_before_they_are_rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is added up of narrow numbers is wide until it is whole."""
    graph = Graph("test")
    x = graph.add_input("x", (4096,), dace.float32)
    graph.add_output(Builder(graph).reduce("sum", None, x, axes=[0]))
    given = np.full(4096, 0.1, np.float32)
    monkeypatch.setattr(interpret_pieces, "MOST_ELEMENTS", 1)
    (found,) = interpret(graph, {x: given}).values()
    exact = given.astype(np.float64).sum()
    assert abs(found - exact) <= 2 * np.spacing(np.float32(exact))


def test_memory_is_that_of_a_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every row with every other, one number: 8 MB for each value of the whole domain."""
    graph = Graph("test")
    x, y = graph.add_input("x", (1000,), dace.float32), graph.add_array("y", (1000,), dace.float32)
    i, j = param(0), param(1)
    v, w, out = (scalar.symbol(n, dace.float32) for n in ("v", "w", "out"))
    reads = {"v": Access(x, (i,)), "w": Access(x, (j,))}
    assignment = Assignment(out, scalar.maximum(v - w, 0) * sympy.tanh(v + w), dace.float32)
    rows = Stage((i, j), reads, {"out": Access(y, (i,), "sum")}, (assignment,))
    graph.add_kernel(Kernel("pairs", {i: 1000, j: 1000}, [rows]))
    graph.add_output(y)
    given = np.random.default_rng(0).normal(size=1000).astype(np.float32)
    monkeypatch.setattr(interpret_pieces, "MOST_ELEMENTS", 4000)
    tracemalloc.start()
    found = interpret(graph, {x: given}, np.float64)[y]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    wide = given.astype(np.float64)
    exact = (np.maximum(wide[:, None] - wide, 0) * np.tanh(wide[:, None] + wide)).sum(1)
    np.testing.assert_allclose(found, exact, rtol=1e-12)
    assert peak < 2_000_000


def window_sums(rows: int, windows: int) -> tuple[Graph, Stage]:
    """What windows of 3 elements, 2 apart, give back to the elements that they are over."""
    graph = Graph("test")
    g, y = graph.add_input("g", (windows, 3), dace.float32), graph.add_array("y", (rows,), dace.float32)
    i, j = param(0), param(1)
    out = scalar.symbol("out", dace.float32)
    inside = scalar.logical_and(scalar.ge(i - 2 * j, 0), scalar.lt(i - 2 * j, 3))
    value = scalar.load(scalar.symbol("g", dace.float32), j, scalar.clamp(i - 2 * j, 3))
    assignment = Assignment(out, scalar.select(inside, value, 0), dace.float32)
    stage = Stage((i, j), {"g": Access(g, (None, None))}, {"out": Access(y, (i,), "sum")}, (assignment,))
    graph.add_kernel(Kernel("windows", {i: rows, j: windows}, [stage]))
    graph.add_output(y)
    return graph, stage


def test_iterations_that_add_nothing_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, stage = window_sums(20_001, 10_000)
    bounds = bounds_of(stage, int)
    assert bounds == [LowerBound(0, {"i0": 1, "i1": -2}), LowerBound(2, {"i0": -1, "i1": 2})]
    monkeypatch.setattr(interpret_pieces, "_FEW_ELEMENTS", 1 << 12)
    pieces = list(Iterations(("i0", "i1"), (0, 0), (20_001, 10_000)).pieces(lambda: bounds))
    assert sum(p.extents[0] * p.extents[1] for p in pieces) < 20_001 * 10_000 // 50
    given = np.random.default_rng(0).normal(size=(10_000, 3)).astype(np.float32)
    expected = np.zeros(20_001)
    for k in range(3):
        expected[k : k + 20_000 : 2][:10_000] += given[:, k]
    np.testing.assert_allclose(
        interpret(graph, {graph.inputs[0]: given}, np.float64)[graph.outputs[0]], expected, rtol=1e-12
    )


def test_where_nothing_is_added_the_total_is_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, _ = window_sums(8, 4)
    monkeypatch.setattr(interpret_pieces, "MOST_ELEMENTS", 4)
    given = np.ones((4, 3), np.float32)
    assert interpret(graph, {graph.inputs[0]: given})[graph.outputs[0]].tolist() == [1, 1, 2, 1, 2, 1, 2, 1]
    never = [LowerBound(-1, {})]
    assert [p.extents for p in Iterations(("i0",), (0,), (9,)).pieces(lambda: never)] == [(1,)]

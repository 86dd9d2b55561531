"""Arrays written in parts: def-use, validation, edits, execution by the interpreter and as compiled code."""

from __future__ import annotations

from typing import Any

import dace
import numpy as np
import pytest

from daceopt.codegen.memory_plan import plan
from daceopt.errors import IllegalParts
from daceopt.ir.graph.graph import Graph
from daceopt.ir.interpreter.interpret import interpret
from daceopt.ir.nodes.builder import Builder
from transformations.local.map_fusion import MapFusion

F = dace.float32


def _joined(axis: int = 0, boxes: Any = ((0, 2), (2, 4)), shape: Any = (4, 3)) -> tuple[Graph, str, list[str]]:
    """w = [x + 1, x + 2, ...] along ``axis`` in boxes (start, end), and y = 2 w."""
    graph = Graph("joined")
    b = Builder(graph, "v")
    whole = graph.add_array("w", shape, F)
    names = []
    for k, (start, end) in enumerate(boxes):
        starts, extents = [0] * len(shape), list(shape)
        starts[axis], extents[axis] = start, end - start
        x = graph.add_input("x", extents, F)
        names.append(graph.add_part(whole, "p", starts, extents))
        b.elementwise(lambda v, k=k: v + k + 1, x, out=names[-1], label=f"make_{k}")
    graph.add_output(b.elementwise(lambda v: v * 2, whole, label="read"))
    return graph, whole, names


def _run(graph: Graph) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return interpret(graph, {n: rng.standard_normal(graph.shape(n)) for n in graph.inputs}, np.float64)


def _expected(graph: Graph, axis: int = 0) -> np.ndarray:
    rng = np.random.default_rng(0)
    given = [rng.standard_normal(graph.shape(n)) for n in graph.inputs]
    return 2 * np.concatenate([v + k + 1 for k, v in enumerate(given)], axis)


@pytest.mark.parametrize("axis", [0, 1])
def test_a_reader_of_the_whole_depends_on_the_writer_of_each_part(axis: int) -> None:
    graph, whole, names = _joined(axis, boxes=((0, 1), (1, 3)), shape=(3, 3))
    graph.validate()
    assert graph.producer(whole) is None and graph.producers(whole) == [graph.producer(n) for n in names]
    assert graph.consumers(names[0]) == [] and graph.all_consumers(names[0]) == graph.consumers(whole)
    assert graph.parts_of(whole) == names and graph.root(names[1]) == (whole, (3, 1)[axis])
    assert [n.label for n in graph.nodes()] == ["make_0", "make_1", "read"]
    np.testing.assert_array_equal(_run(graph)[graph.outputs[0]], _expected(graph, axis))


def test_parts_share_the_place_of_the_whole() -> None:
    graph, whole, names = _joined()
    result = plan(graph)
    assert set(result.arena) == {whole} and not set(names) & set(result.arena)
    graph.order = [graph.nodes()[1], graph.nodes()[0], graph.nodes()[2]]
    assert set(plan(graph).arena) == {whole}


N = dace.symbolic.symbol("n", dace.int64)


@pytest.mark.parametrize(
    ("boxes", "shape", "reason"),
    [
        (((0, 2), (1, 4)), (4, 3), r"parts p_\d+ \[0:2, 0:3\] and p_\d+ \[1:4, 0:3\] of w_1 overlap"),
        (((0, 2), (3, 4)), (4, 3), r"the parts of w_1, of shape \[4, 3\], leave a gap: .* have 9 of its 12 elements"),
        (((0, 2), (2, 5)), (4, 3), r"part p_\d+ \[2:5, 0:3\] leaves w_1, of shape \[4, 3\]"),
        (((-1, 2), (2, 4)), (4, 3), r"part p_\d+ \[-1:2, 0:3\] leaves w_1"),
        (((0, 2), (2, N)), (N, 3), r"part p_\d+ \[0:2, 0:3\] leaves w_1, of shape \[n, 3\]"),
        (((0, N + 1), (N, 2 * N)), (2 * N + 1, 3), r"\[0:n \+ 1, 0:3\] and p_\d+ \[n:2\*n, 0:3\] of w_1 overlap"),
    ],
)
def test_parts_that_overlap_leave_a_gap_or_the_array_are_refused(boxes: Any, shape: Any, reason: str) -> None:
    graph, *_ = _joined(boxes=boxes, shape=shape)
    with pytest.raises(IllegalParts, match=reason):
        graph.validate()


def test_parts_of_open_sizes() -> None:
    graph, *_ = _joined(boxes=((0, N), (N, N + 2)), shape=(N + 2, 3))
    graph.symbols["n"] = (graph.inputs[0], 0)
    graph.validate()
    inputs = {n: np.ones((5, 3) if k == 0 else (2, 3)) for k, n in enumerate(graph.inputs)}
    found = interpret(graph, inputs, np.float64)[graph.outputs[0]]
    np.testing.assert_array_equal(found, np.repeat([4.0, 6.0], [5, 2])[:, None] * np.ones(3))


def test_an_array_is_written_as_a_whole_or_in_parts() -> None:
    graph, whole, names = _joined()
    b = Builder(graph)
    with pytest.raises(ValueError, match="written twice"):
        b.elementwise(lambda v: v, graph.inputs[0], out=names[0])
    with pytest.raises(ValueError, match="written twice"):
        b.copy(graph.outputs[0], out=whole)
    with pytest.raises(ValueError, match="no room"):
        graph.add_part(graph.outputs[0], "p", [0, 0], [1, 3])
    with pytest.raises(ValueError, match="copy it first"):
        graph.add_output(names[0])
    with pytest.raises(ValueError, match=f"a part of {whole}"):
        graph.replace_uses(names[0], graph.inputs[0])
    graph.saved.append(names[0])
    with pytest.raises(ValueError, match="a part of"):
        graph.validate()


def test_a_missing_writer_is_seen() -> None:
    graph, whole, names = _joined()
    graph.remove(graph.producer(names[1]))
    with pytest.raises(ValueError, match=f"{names[1]}, a part of {whole}, is never written"):
        graph.validate()


def test_a_whole_that_nobody_reads_leaves_its_parts_alone() -> None:
    graph, whole, (first, second) = _joined()
    graph.outputs.clear()
    graph.add_output(Builder(graph).elementwise(lambda v: v - 1, first))
    graph.prune()
    graph.validate()
    assert whole not in graph.arrays() and second not in graph.arrays() and not graph.is_part(first)
    assert len(graph.nodes()) == 2
    graph.remove(graph.producer(graph.outputs.pop()))
    graph.prune()
    assert graph.nodes() == [] and graph.arrays() == graph.inputs


def test_a_part_is_read_by_itself_and_follows_the_layout_of_the_whole() -> None:
    graph, whole, (first, _) = _joined()
    b = Builder(graph)
    graph.add_output(b.copy(b.transpose(first, (1, 0))))
    before = _run(graph)
    graph.set_strides(whole, (1, 4))
    graph.validate()
    assert graph.strides(first) == (1, 4) and graph.root(first) == (whole, 0)
    with pytest.raises(ValueError, match="view or part"):
        graph.set_strides(first, (3, 1))
    for name, value in _run(graph).items():
        np.testing.assert_array_equal(value, before[name])
    twin = graph.copy()
    twin.validate()
    assert twin.parts_of(whole) == graph.parts_of(whole)
    twin.set_strides(whole, (3, 1))
    assert graph.strides(first) == (1, 4)


def test_parts_of_parts() -> None:
    graph, whole, (first, _) = _joined(boxes=((0, 3), (3, 4)))
    graph.remove(graph.producer(first))
    b = Builder(graph)
    for k in range(3):
        inner = graph.add_part(first, "q", [k, 0], [1, 3])
        b.elementwise(lambda v, k=k: v * k, b.slice(graph.inputs[0], [k], [k + 1], axes=[0]), out=inner)
        assert graph.root(inner) == (whole, 3 * k)
    graph.validate()
    assert len(graph.producers(whole)) == 4
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal(graph.shape(n)) for n in graph.inputs)
    expected = 2 * np.concatenate([x * np.arange(3)[:, None], y + 2])
    np.testing.assert_array_equal(_run(graph)[graph.outputs[0]], expected)


@pytest.mark.parametrize("axis", [0, 1])
def test_fusion_keeps_what_it_cannot_know(axis: int) -> None:
    """A kernel that writes one part is not the producer of the whole; chains before a part do fuse into it."""
    graph, whole, names = _joined(axis, boxes=((0, 2), (2, 4)), shape=(4, 4))
    b = Builder(graph, "v")
    graph.add_output(b.elementwise(lambda v, w: v - w, names[0], graph.inputs[0], label="again"))
    before = _run(graph)
    MapFusion().run(graph)
    graph.validate()
    for name, value in _run(graph).items():
        np.testing.assert_array_equal(value, before[name])
    assert whole in graph.arrays() and len(graph.nodes()) == 3  # again joins the writer of its part

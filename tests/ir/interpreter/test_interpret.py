"""The interpreter: views, reductions, locals, double precision, and errors for what a kernel must never do."""

from __future__ import annotations

from typing import Any

import dace
import numpy as np
import pytest

import daceopt.ops  # noqa: F401  (brings how operators are executed)
from daceopt.ir.graph.graph import Graph
from daceopt.ir.interpreter.interpret import interpret
from daceopt.ir.kernel.kernel import Access, Kernel, Stage, param
from daceopt.ir.kernel.tasklet import Assignment
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.scalar import scalar

X = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)


def start() -> tuple[Graph, Builder, str]:
    graph = Graph("test")
    return graph, Builder(graph), graph.add_input("x", (3, 4), dace.float32)


def test_views_and_their_views() -> None:
    graph, b, x = start()
    inner = b.slice(b.transpose(x, [1, 0]), [1, 0], [4, 3], [2, 1])
    graph.add_output(b.copy(inner))
    np.testing.assert_array_equal(interpret(graph, {x: X})[graph.outputs[0]], X.T[1:4:2])


def test_a_column_major_array() -> None:
    graph, b, x = start()
    y = graph.add_array("y", (3, 4), dace.float32, strides=(1, 3))
    graph.add_output(b.elementwise(lambda v: v + 1, x, out=y))
    np.testing.assert_array_equal(interpret(graph, {x: X})[y], X + 1)


@pytest.mark.parametrize("kind, function", [("sum", np.sum), ("prod", np.prod), ("max", np.max), ("min", np.min)])
def test_reductions(kind: str, function: object) -> None:
    graph, b, x = start()
    graph.add_output(b.reduce(kind, None, x, axes=[0]))
    np.testing.assert_allclose(interpret(graph, {x: X})[graph.outputs[0]], function(X, axis=0), rtol=1e-6)  # type: ignore[operator]


def test_stages_share_locals_within_one_outer_iteration() -> None:
    """Rows divided by their sums, the sum being local to a row."""
    graph, _, x = start()
    y = graph.add_array("y", (3, 4), dace.float32)
    i, j = param(0), param(1)
    v, s = scalar.symbol("v", dace.float32), scalar.symbol("s", dace.float32)
    out = scalar.symbol("out", dace.float32)
    add = Stage(
        (i, j), {"v": Access(x, (i, j))}, {"out": Access("row", (0,), "sum")}, (Assignment(out, v, dace.float32),)
    )
    reads = {"v": Access(x, (i, j)), "s": Access("row", (0,))}
    divide = Stage((i, j), reads, {"out": Access(y, (i, j))}, (Assignment(out, v / s, dace.float32),))
    graph.add_kernel(Kernel("rows", {i: 3, j: 4}, [add, divide], (i,), {"row": (dace.float32, (1,))}))
    graph.add_output(y)
    np.testing.assert_allclose(interpret(graph, {x: X})[y], X / X.sum(1, keepdims=True), rtol=1e-5)


def test_double_precision_throughout() -> None:
    graph, b, x = start()
    y = b.elementwise(lambda v: v / 3, x)
    graph.add_output(b.elementwise(lambda v: v * 3, y))
    done = interpret(graph, {x: X}, dtype=np.float64)[graph.outputs[0]]
    assert done.dtype == np.float64
    np.testing.assert_allclose(done, X.astype(np.float64), rtol=1e-15)


def test_a_read_outside_of_the_buffer_is_an_error() -> None:
    graph, b, x = start()
    y = graph.add_array("y", (4, 4), dace.float32)
    b.map((4, 4), {"v": (x, lambda *i: i)}, {"out": (y, lambda *i: i)}, lambda i, v: v, label="wide")
    graph.add_output(y)
    with pytest.raises(ValueError, match="kernel wide, array x_1: elements 0 to 15 of a buffer of 12"):
        interpret(graph, {x: X})


def test_wrong_inputs_are_errors() -> None:
    graph, b, x = start()
    graph.add_output(b.copy(x))
    with pytest.raises(ValueError, match="missing inputs"):
        interpret(graph, {})
    with pytest.raises(ValueError, match=r"expected shape \(3, 4\), found \(4, 3\)"):
        interpret(graph, {x: X.T})


def test_operators_that_are_not_lowered_yet() -> None:
    graph, _, x = start()
    y, z = graph.add_array("y", (3, 4), dace.float32), graph.add_array("z", (1, 4), dace.float32)
    graph.add_operator("Relu", [x], [y])
    rows = graph.add_constant("rows", np.array([[0, 1, 2, 0]]))
    graph.add_operator("GatherElements", [y, rows], [z], {"axis": 0})
    graph.add_output(z)
    expected = np.maximum(X, 0)[[0, 1, 2, 0], range(4)]
    np.testing.assert_array_equal(interpret(graph, {x: X})[z], expected[None])


@pytest.mark.parametrize("place", [(None, 0), (0, None), (None, 1), (1, None)])
@pytest.mark.parametrize("step", [1, 2])
def test_load_beside_a_dimension_that_the_loops_walk(place: tuple[Any, Any], step: int) -> None:
    """``y[i, j] = table[k[i], j]`` and the like: one dimension open, the other of the iteration."""
    graph = Graph("beside")
    b = Builder(graph)
    table = graph.add_input("table", (12, 12), dace.float32)
    k = graph.add_input("k", (4, 5), dace.int64)
    y = graph.add_array("y", (4, 5), dace.float32)

    def element(i: Any, j: Any) -> tuple[Any, ...]:
        return tuple(None if e is None else step * (i, j)[e] + 1 for e in place)

    reads = {"t": (table, element), "n": (k, lambda i, j: (i, j))}
    b.map((4, 5), reads, {"o": (y, lambda i, j: (i, j))}, lambda _, t, n: scalar.load(t, n))
    graph.add_output(y)
    rng = np.random.default_rng(0)
    data = {table: rng.standard_normal((12, 12)).astype(np.float32), k: rng.integers(0, 12, (4, 5))}
    (axis,) = (e for e in place if e is not None)
    bound = np.indices((4, 5))[axis] * step + 1
    expected = data[table][data[k], bound] if place[0] is None else data[table][bound, data[k]]
    np.testing.assert_array_equal(interpret(graph, data)[y], expected)
    with pytest.raises(IndexError):
        interpret(graph, {**data, k: np.full((4, 5), 12)})

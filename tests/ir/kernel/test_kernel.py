"""Kernels survive being written and read, whatever their form."""

from __future__ import annotations

from dataclasses import replace

import dace
import numpy as np
import pytest

from daceopt.ir.fusion.fusion import expand_locals
from daceopt.ir.graph.graph import Graph
from daceopt.ir.kernel.kernel import Access, Kernel, Stage, param
from daceopt.ir.kernel.tasklet import Assignment
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.scalar import scalar

F = dace.float32
ROW, COLUMN = param(0), param(1)


def start() -> tuple[Graph, Builder, str]:
    graph = Graph("test")
    return graph, Builder(graph), graph.add_input("x", (4, 6), F)


def round_trip(graph: Graph) -> tuple[Kernel, Kernel]:
    (entry,) = graph.kernels()
    before = entry.kernel
    graph.remove(entry)
    after = graph.add_kernel(before).kernel
    graph.validate()
    return before, after


def rows(graph: Graph, x: str) -> Kernel:
    """Rows divided by their sums."""
    y = graph.add_array("y", (4, 6), F)
    v, s, out = (scalar.symbol(n, F) for n in ("v", "s", "out"))
    add = Stage(
        (ROW, COLUMN), {"v": Access(x, (ROW, COLUMN))}, {"out": Access("row", (0,), "sum")}, (Assignment(out, v, F),)
    )
    reads = {"v": Access(x, (ROW, COLUMN)), "s": Access("row", (0,))}
    divide = Stage((ROW, COLUMN), reads, {"out": Access(y, (ROW, COLUMN))}, (Assignment(out, v / s, F),))
    return Kernel("rows", {ROW: 4, COLUMN: 6}, [add, divide], (ROW,), {"row": (F, (1,))})


def test_point_wise_reducing_and_scalar_kernels() -> None:
    for build in (
        lambda b, x: b.elementwise(lambda v: v + 1, x),
        lambda b, x: b.reduce("max", None, x, axes=[0]),
        lambda b, x: b.reduce("prod", None, x, axes=[0, 1]),
    ):
        graph, b, x = start()
        build(b, x)
        before, after = round_trip(graph)
        assert before == after


def test_stages_and_locals() -> None:
    graph, _, x = start()
    kernel = rows(graph, x)
    graph.add_kernel(kernel)
    before, after = round_trip(graph)
    assert before == after and len(after.stages) == 2 and after.outer == (ROW,)
    assert expand_locals(after).stages[0].reduced_params("out") == (COLUMN,)


def test_whole_dimensions_of_one_element() -> None:
    """A dimension of extent 1 that is read whole is not taken for its element 0."""
    graph, b, _ = start()
    table = graph.add_input("table", (1, 6), F)
    out = graph.add_array("out", (6,), F)
    b.map((6,), {"a": (table, lambda i: (None, i))}, {"out": (out, lambda i: (i,))}, lambda i, a: scalar.load(a, 0))
    _, after = round_trip(graph)
    assert after.stages[0].reads["a"].index == (None, ROW)


def test_loops_of_one_iteration_vanish() -> None:
    graph, b, _ = start()
    thin = graph.add_input("thin", (1, 6, 1), F)
    b.elementwise(lambda v: v + 1, thin)
    (kernel,) = (k.kernel for k in graph.kernels())
    assert list(kernel.extents.values()) == [6]
    (read,) = kernel.reads()
    assert read.index[0] == read.index[2] == 0


@pytest.mark.parametrize(
    ("access", "message"),
    [(Access("x_9", (ROW, COLUMN)), r"reads \['x_9'\], its node \['x_1'\]"), (Access("x_1", (ROW,)), "shape .* at")],
)
def test_a_node_says_what_its_kernel_accesses(access: Access, message: str) -> None:
    graph, b, x = start()
    graph.add_output(b.elementwise(lambda v: v + 1, x))
    (node,) = graph.kernels()
    (stage,) = node.kernel.stages
    node.kernel = replace(node.kernel, stages=[replace(stage, reads=dict.fromkeys(stage.reads, access))])
    with pytest.raises(ValueError, match=message):
        graph.validate()


def test_arrays_are_written_once() -> None:
    graph, b, x = start()
    y = b.elementwise(lambda v: v + 1, x)
    with pytest.raises(ValueError, match="written twice"):
        b.elementwise(lambda v: v + 2, x, out=y)
    np.testing.assert_equal(len(graph.kernels()), 1)

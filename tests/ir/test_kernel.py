"""Kernels survive being written and read, whatever their form."""

from __future__ import annotations

import dace
import numpy as np
import pytest
from dace import nodes

from daceopt.errors import Unsupported
from daceopt.ir import scalar
from daceopt.ir.builder import Builder
from daceopt.ir.fusion import expand_locals
from daceopt.ir.graph import Graph
from daceopt.ir.kernel import Access, Kernel, Stage, param
from daceopt.ir.tasklet import Assignment

F = dace.float32
ROW, COLUMN = param(0), param(1)


def start() -> tuple[Graph, Builder, str]:
    graph = Graph("test")
    return graph, Builder(graph), graph.add_input("x", (4, 6), F)


def round_trip(graph: Graph) -> tuple[Kernel, Kernel]:
    (entry,) = graph.kernels()
    before = Kernel.extract(graph, entry)
    graph.remove(entry)
    after = Kernel.extract(graph, before.emit(graph))
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
    kernel.emit(graph)
    before, after = round_trip(graph)
    assert before == after and len(after.stages) == 2 and after.outer == (ROW,)
    assert expand_locals(after).stages[0].reduced("out") == (COLUMN,)


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
    (kernel,) = (Kernel.extract(graph, k) for k in graph.kernels())
    assert list(kernel.extents.values()) == [6]
    (read,) = kernel.reads()
    assert read.index[0] == read.index[2] == 0


def test_ranges_that_start_elsewhere_are_shifted() -> None:
    graph, b, x = start()
    y = b.elementwise(lambda v: v + 1, x)
    (entry,) = graph.kernels()
    entry.map.range = dace.subsets.Range([(1, 3, 1), (0, 5, 1)])
    kernel = Kernel.extract(graph, entry)
    assert kernel.extents == {ROW: 3, COLUMN: 6}
    assert kernel.writes()[0] == Access(y, (ROW + 1, COLUMN))


def test_steps_are_refused() -> None:
    graph, b, x = start()
    b.elementwise(lambda v: v + 1, x)
    (entry,) = graph.kernels()
    entry.map.range = dace.subsets.Range([(0, 3, 2), (0, 5, 1)])
    with pytest.raises(Unsupported, match="step 2; expected 1"):
        Kernel.extract(graph, entry)


def test_tasklets_without_symbolic_form_are_refused() -> None:
    graph, _, x = start()
    y = graph.add_array("y", (4, 6), F)
    entry, exit_ = graph.state.add_map("m", {"i0": "0:4", "i1": "0:6"})
    tasklet = nodes.Tasklet("t", {"a"}, {"b"}, "b = a")
    graph.state.add_memlet_path(graph.access(x), entry, tasklet, dst_conn="a", memlet=dace.Memlet(f"{x}[i0, i1]"))
    graph.state.add_memlet_path(tasklet, exit_, graph.access(y), src_conn="b", memlet=dace.Memlet(f"{y}[i0, i1]"))
    graph.add_scope(entry, exit_)
    with pytest.raises(Unsupported, match="has no symbolic form"):
        Kernel.extract(graph, entry)


def test_arrays_are_written_once() -> None:
    graph, b, x = start()
    y = b.elementwise(lambda v: v + 1, x)
    with pytest.raises(ValueError, match="written twice"):
        b.elementwise(lambda v: v + 2, x, out=y)
    np.testing.assert_equal(len(graph.kernels()), 1)

"""The steps that schedule kernels: what each makes of a kernel, and where it leaves it alone."""

from __future__ import annotations

from typing import Any

import dace
import numpy as np
import pytest
import sympy

from daceopt import recipes
from daceopt.ir.edits.attempt import commit
from daceopt.ir.edits.loops import loops_of
from daceopt.ir.edits.schedule_edits import bind, fuse_loops, split
from daceopt.ir.graph.graph import Graph
from daceopt.ir.interpreter.interpret import interpret
from daceopt.ir.scalar import scalar
from daceopt.ir.schedule.schedule import schedule_of
from daceopt.ir.schedule.schedule_text import text
from daceopt.ops.families.indexing import gather_rows
from daceopt.passes.runner import Runner
from daceopt.passes.transform import Transformation
from tests.ir.edits.test_schedule_edits import two_stages
from tests.ir.isl_checking import assert_agrees
from tests.transformations.lowered import apply, finish, size_symbol, start

F = dace.float32


def _after(graph: Graph, *steps: str) -> str:
    for step in steps:
        apply(Transformation.parse(step), graph)
    (entry,) = graph.kernels()
    kernel = entry.kernel
    assert_agrees(graph, kernel)
    return "\n" + text(schedule_of(kernel)).rstrip()


def _sum(shape: tuple[Any, ...], *axes: int) -> Graph:
    graph, b, (x,) = start(shape)
    return finish(graph, b.reduce("sum", None, x, axes=list(axes)))


def test_loops_that_walk_memory_as_one_are_merged() -> None:
    graph, b, (x,) = start((8, 16, 32))
    finish(graph, b.elementwise(lambda v: v + 1, x))
    assert (
        _after(graph, "loop-merging")
        == """
for i2 < 4096:
  s0(i2 // 512, i2 // 32 % 16, i2 % 32)"""
    )


def test_loops_over_sizes_are_merged() -> None:
    graph, b, (x, s) = start((size_symbol(), 16), (16,))
    finish(graph, b.elementwise(lambda v: v + 1, x))
    assert "for i1 < 16*n:" in _after(graph, "loop-merging")
    graph, b, (x, s) = start((size_symbol(), 16), (16,))
    finish(graph, b.elementwise(lambda v, w: v + w, x, s))
    assert "for i0 < n:" in _after(graph, "loop-merging")


def test_a_parameter_that_is_computed_with_keeps_its_loop() -> None:
    graph, b, (x,) = start((8, 16))
    out = graph.add_array("out", (8, 16), F)
    reads, writes = {"v": (x, lambda *i: i)}, {"o": (out, lambda *i: i)}
    b.map((8, 16), reads, writes, lambda params, v: v * scalar.cast(params[1], F))
    assert "for i0 < 8:\n  for i1 < 16:" in _after(finish(graph, out), "loop-merging")


def test_the_loop_of_unit_stride_is_the_vector_loop() -> None:
    graph, b, (x,) = start((40, 50))
    turned = b.transpose(x, (1, 0))
    finish(graph, b.reduce("sum", None, turned, axes=[1]))
    assert (
        _after(graph, "vectorization")
        == """
accumulate s0.out0:
  for i1 < 40:
    vector for i0 < 50:
      s0(i0, i1)"""
    )


def test_both_parts_of_complex_numbers_are_a_pair_of_each_lane() -> None:
    graph, b, (x,) = start((40, 2))
    y = graph.add_array("y", (40, 2), dace.float32)
    reads = {"re": (x, lambda i, p: (i, 0)), "im": (x, lambda i, p: (i, 1))}
    b.map(
        (40, 2), reads, {"out": (y, lambda i, p: (i, p))}, lambda i, re, im: scalar.select(scalar.eq(i[1], 0), re, -im)
    )
    finish(graph, y)
    assert (
        _after(graph, "vectorization", "threading")
        == """
vector for i0 < 40:
  unroll for i1 < 2:
    s0(i0, i1)"""
    )


def test_transpositions_are_tiled() -> None:
    graph, b, (x,) = start((100, 70))
    finish(graph, b.copy(b.transpose(x, (1, 0))))
    assert (
        _after(graph, "vectorization", "transposition-tiling{size=16}")
        == """
for i0_block < 5:
  for i1_block < 7:
    for i0 < 16, 70 - 16*i0_block:
      vector for i1 < 16, 100 - 16*i1_block:
        s0(i0 + 16*i0_block, i1 + 16*i1_block)"""
    )


def test_tiles_of_a_transposition_are_calls() -> None:
    graph, b, (x,) = start((100, 70))
    finish(graph, b.copy(b.transpose(x, (1, 0))))
    assert (
        _after(graph, "vectorization", "transposition-tiling{size=16}", "transposition-call")
        == """
for i0_block < 5:
  for i1_block < 7:
    call transposition:
      for i0 < 16, 70 - 16*i0_block:
        for i1 < 16, 100 - 16*i1_block:
          s0(i0 + 16*i0_block, i1 + 16*i1_block)"""
    )


@pytest.mark.parametrize(
    "build",
    [
        lambda b, x: b.elementwise(lambda v: v * 2, b.transpose(x, (1, 0))),
        lambda b, x: b.copy(x),
        lambda b, x: b.copy(b.transpose(b.slice(x, [0], [7], [1], [0]), (1, 0))),
        lambda b, x: b.cast(b.transpose(x, (1, 0)), dace.float64),
        lambda b, x: b.copy(b.transpose(b.slice(x, [0], [70], [2], [1]), (1, 0))),
    ],
    ids=["what computes", "in order", "few rows", "to another type", "without unit stride"],
)
def test_other_copies_are_no_calls(build: Any) -> None:
    graph, b, (x,) = start((100, 70))
    finish(graph, build(b, x))
    assert "call" not in _after(graph, "vectorization", "transposition-call")


@pytest.mark.parametrize(
    ("shape", "axes", "expected"),
    [
        ((40, 50), (0,), ["for i0 < 40:", "vector for i1 < 50:"]),
        ((40, 9000), (0,), ["for i1_block < 18:", "for i0 < 40:", "vector for i1 < 512, 9000 - 512*i1_block:"]),
        ((20, 30, 50), (1,), ["for i0 < 20:", "for i1 < 30:", "vector for i2 < 50:"]),
        ((4, 30, 50), (1, 2), ["for i0 < 4:", "for i1 < 30:", "vector for i2 < 50:"]),
        ((5, 4, 6), (0, 2), ["for i1 < 4:", "for i0 < 5:", "vector for i2 < 6:"]),
    ],
)
def test_loops_of_reductions_are_ordered(shape: Any, axes: Any, expected: list[str]) -> None:
    found = _after(_sum(shape, *axes), "vectorization", "reduction-ordering")
    assert [line.strip() for line in found.splitlines() if "for " in line] == expected


def test_a_long_sum_is_cut_into_blocks() -> None:
    assert (
        _after(_sum((1000000,), 0), "vectorization", "long-loop-splitting", "threading", "lane-sum-splitting")
        == """
accumulate private s0.out0:
  parallel for i0_block < 245:
    for i0_chunk < 16:
      accumulate own s0.out0:
        vector for i0 < 256, -4096*i0_block - 256*i0_chunk + 1000000:
          s0(i0 + 4096*i0_block + 256*i0_chunk)"""
    )


COLUMNS = ("vectorization", "reduction-ordering", "column-sum-splitting")


def test_columns_add_up_a_few_rows_before_their_accumulators() -> None:
    assert (
        _after(_sum((48, 50), 0), *COLUMNS)
        == """
accumulate s0.out0:
  for i0_block < 6:
    vector for i1 < 50:
      accumulate own s0.out0:
        unroll for i0 < 8:
          s0(i0 + 8*i0_block, i1)"""
    )


@pytest.mark.parametrize(
    ("shape", "axes", "rows"),
    [((60, 50), (0,), 6), ((35, 50), (0,), 7), ((12, 50), (0,), 12), ((8, 50), (0,), 8), ((20, 30, 50), (1,), 6)],
)
def test_as_many_rows_as_divide_them(shape: Any, axes: Any, rows: int) -> None:
    assert f"unroll for i{axes[0]} < {rows}:" in _after(_sum(shape, *axes), *COLUMNS)


@pytest.mark.parametrize(
    ("shape", "axes"),
    [((41, 50), (0,)), ((6 * 41, 50), (1,)), ((2 * 41, 50), (0,)), ((3, 50), (0,)), ((size_symbol(), 50), (0,))],
)
def test_other_sums_stay(shape: Any, axes: Any) -> None:
    """Of rows, of a number of rows that nothing suitable divides, of an open one."""
    assert "unroll" not in _after(_sum(shape, *axes), *COLUMNS)


def test_rows_of_two_dimensions_in_one_loop_stay() -> None:
    assert "unroll" not in _after(_sum((4, 12, 50), 0, 1), "loop-merging", *COLUMNS)


def test_columns_that_are_written_as_well_stay() -> None:
    """A store in each row leaves the lanes nothing to keep in registers."""
    graph, b, (x,) = start((48, 50))
    finish(graph, y := b.elementwise(lambda v: v + 1, x), b.reduce("sum", None, y, axes=[0]))
    apply(Transformation.parse("map-fusion"), graph)
    assert "unroll" not in _after(graph, *COLUMNS) and len(graph.kernels()) == 1


def _normalized_columns(rows: Any, columns: int) -> Graph:
    """Sums of columns of rows that are divided by their sums, in one kernel."""
    graph, b, (x,) = start((rows, columns))
    total = b.reduce("sum", None, x, axes=[1], keepdims=True)
    finish(graph, b.reduce("sum", lambda v, t: v / t, x, total, axes=[0]))
    apply(Transformation.parse("map-fusion"), graph)
    assert len(graph.kernels()) == 1
    return graph


def test_rows_with_sums_of_columns_are_taken_by_eight() -> None:
    """What a thread adds up of eight rows is kept in float32 beside its accumulators."""
    steps = (*COLUMNS[:-1], "column-sum-splitting{enough=4}", "threading{work=1, enough=4}")
    assert (
        _after(_normalized_columns(64, 96), *steps)
        == """
accumulate private s1.out0:
  parallel for i0_block < 8:
    accumulate own s1.out0:
      for i0 < 8:
        local k_2_l in thread:
          accumulate s0.out0:
            accumulate own s0.out0:
              vector for i1 < 96:
                s0(i0 + 8*i0_block, i1)
          vector for i1 < 96:
            s1(i0 + 8*i0_block, i1)"""
    )


@pytest.mark.parametrize(("rows", "columns"), [(41, 96), (64, 32), (16, 96), (size_symbol(), 96)])
def test_other_rows_with_sums_of_columns_stay(rows: Any, columns: int) -> None:
    """That nothing suitable divides, of few columns, too few for the threads, of which there are unknown many."""
    assert "block" not in _after(_normalized_columns(rows, columns), *COLUMNS[:-1], "column-sum-splitting{enough=4}")


def test_small_kernels_stay_in_one_thread() -> None:
    graph, b, (x,) = start((8, 16))
    finish(graph, b.elementwise(lambda v: v + 1, x))
    assert "parallel" not in _after(graph, "loop-merging", "vectorization", "threading")


def test_sizes_decide_when_the_program_runs() -> None:
    graph, b, (x,) = start((size_symbol(), 16))
    finish(graph, b.elementwise(lambda v: v + 1, x))
    found = _after(graph, "loop-merging", "vectorization", "threading")
    assert "parallel vector for i1 < 16*n when 16*n >= 32768:" in found


def test_statements_over_the_same_elements_share_their_loop() -> None:
    graph, _ = two_stages()
    assert (
        _after(graph, "loop-fusion", "vectorization", "register-promotion")
        == """
for i0 < 8:
  local row in register:
    vector for i1 < 16:
      s0(i0, i1)
      s1(i0, i1)"""
    )


def test_statements_that_share_all_loops_are_vectors() -> None:
    """Halves of equal extents: loop fusion leaves no loop that is not around both."""
    graph, b, (x, y) = start((40, 4096), (40, 4096))
    out = graph.add_array("out", (2, 40, 4096), F)
    reads = {"u": (x, lambda k, i, j: (i, j)), "v": (y, lambda k, i, j: (i, j))}
    b.map((2, 40, 4096), reads, {"out": (out, lambda *i: i)}, _half, label="halves")
    finish(graph, out)
    found = _after(graph, "index-set-splitting", "loop-fusion", "loop-merging", "vectorization", "threading")
    assert found.startswith("\nparallel vector for i2 < 163840:\n  s0(") and "\n  s1(" in found


def _half(p: tuple[sympy.Symbol, ...], u: sympy.Expr, v: sympy.Expr) -> sympy.Expr:
    return sympy.exp(scalar.select(scalar.eq(p[0], 0), u, v))


def _rows_in_turns() -> Graph:
    """Rows of two arrays in turns, which do not end with a pair: index-set splitting makes a statement of each."""
    graph, b, (x, y) = start((7, 4096), (7, 4096))
    out = graph.add_array("out", (7, 4096), F)
    reads = {"u": (x, lambda i, j: (i, j)), "v": (y, lambda i, j: (i, j))}
    b.map((7, 4096), reads, {"out": (out, lambda *i: i)}, _turn, label="turns")
    return finish(graph, out)


def _turn(p: tuple[sympy.Symbol, ...], u: sympy.Expr, v: sympy.Expr) -> sympy.Expr:
    return scalar.select(scalar.eq(scalar.pymod(p[0], 2), 0), u, v)


@pytest.mark.parametrize(("streams", "nests"), [(4, 4), (16, 1)])
def test_a_loop_walks_as_many_streams_as_a_core_follows(streams: int, nests: int) -> None:
    found = _after(_rows_in_turns(), "index-set-splitting", f"loop-fusion{{streams={streams}}}")
    assert found.count("for i1 < 4096:") == nests and found.count("  s") == 7


def test_a_schedule_given_by_hand_is_kept() -> None:
    graph, entry = two_stages()
    commit(graph, entry, bind(bind(loops_of(graph, entry).tree, "i0", "parallel"), "i1", "unroll"))
    Runner(recipes.get("cpu"), "numerics").run(graph, levels=("hardware",))
    assert_agrees(graph, entry.kernel)
    kept = text(entry.tree)
    assert "unroll for i1 < 16:" in kept and "parallel for i0 < 8:" in kept


def test_forms_that_the_steps_do_not_know_are_near_misses() -> None:
    graph, entry = two_stages()
    commit(graph, entry, fuse_loops(split(loops_of(graph, entry).tree, "i1", 8), "i1_block"))
    assert_agrees(graph, entry.kernel)
    found = list(Transformation.parse("vectorization").match(graph))
    assert [str(f) for f in found] == ["pair: its schedule was given by hand"]


def test_threads_share_rows_and_a_reduced_loop() -> None:
    found = _after(_sum((4, 300, 500), 1, 2), "vectorization", "reduction-ordering", "threading")
    assert (
        found
        == """
accumulate private s0.out0:
  parallel for i0 < 4:
    parallel for i1 < 300:
      accumulate own s0.out0:
        vector for i2 < 500:
          s0(i0, i1, i2)"""
    )


@pytest.mark.parametrize("shape", [(7, 33), (40, 5000), (300, 20)])
def test_the_whole_level_keeps_the_numbers(shape: tuple[int, int]) -> None:
    graph, b, (x,) = start(shape)
    e = b.elementwise(sympy.exp, x)
    rows, columns = b.reduce("sum", None, e, axes=[1]), b.reduce("max", None, e, axes=[0])
    finish(graph, e, rows, columns, b.copy(b.transpose(e, (1, 0))))
    data = {x: np.random.default_rng(1).standard_normal(shape).astype(np.float32)}
    before = interpret(graph, data, dtype=np.float64)
    Runner(recipes.get("cpu"), "numerics").run(graph, levels=("hardware",))
    for entry in graph.kernels():
        assert_agrees(graph, entry.kernel)
    for ours, theirs in zip(interpret(graph, data, dtype=np.float64).values(), before.values()):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12)


def _bag(shape: tuple[Any, ...] = (6, 10)) -> Graph:
    """Sums of rows of a table, which indices choose."""
    graph, b, (table,) = start((50, 64))
    index = graph.add_input("index", shape, dace.int64)
    rows = graph.add_array("rows", (*shape, 64), F)
    gather_rows(b, table, index, 0, rows)
    graph.add_output(b.reduce("sum", None, rows, axes=[len(shape) - 1]))
    Runner(recipes.get("cpu"), "structure").run(graph, levels=("local",))
    return graph


def test_locals_of_a_reduction_become_arrays_along_what_memory_is_walked() -> None:
    graph = _bag()
    assert (
        _after(graph, "scalar-expansion", "vectorization")
        == """
for i0 < 6:
  local k_4_acc in thread:
    accumulate s0.out0:
      for i1 < 10:
        vector for i2 < 64:
          s0(i0, i2, i1)
    vector for i2 < 64:
      s1(i0, i2)"""
    )


@pytest.mark.parametrize("step", ["scalar-expansion{array=63}", "scalar-expansion"])
def test_locals_stay_scalars(step: str) -> None:
    """Where the arrays would leave the cache, and where the reduction walks memory itself."""
    if step == "scalar-expansion":
        graph, b, (x,) = start((16, 32))
        graph.add_output(b.elementwise(lambda v: v * 2, b.reduce("sum", None, x, axes=[1])))
        Runner(recipes.get("cpu"), "structure").run(graph, levels=("local",))
    else:
        graph = _bag()
    before = _after(graph, "loop-merging")
    assert _after(graph, step) == before

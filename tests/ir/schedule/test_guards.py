"""Guards: statements that run in some iterations of the loops around them, each instance once all the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import dace
import numpy as np
import pytest
import sympy

from daceopt.errors import IllegalSchedule, Unsupported
from daceopt.ir.edits import schedule_edits as edits
from daceopt.ir.edits.attempt import commit
from daceopt.ir.edits.loops import loops_of
from daceopt.ir.graph.graph import Graph
from daceopt.ir.interpreter.interpret import interpret
from daceopt.ir.kernel.kernel import Access, Kernel
from daceopt.ir.legality import schedule_check
from daceopt.ir.scalar.symbols import Parameter, size
from daceopt.ir.schedule import schedule
from daceopt.ir.schedule.conditions import relation
from daceopt.ir.schedule.schedule import Alloc, Guard, Loop, Tree
from daceopt.ir.schedule.schedule_text import parse, text
from daceopt.ir.text.parse import parse as parse_graph
from daceopt.ir.text.render import render
from tests.ir.edits.test_schedule_edits import copy, total
from tests.ir.guarded import COLUMN, ROW, SIZES, F, V, blocks, expected, neighbours, random_inputs, stage
from tests.ir.isl_checking import assert_agrees, assert_in_order, verdict

BLOCK = Parameter("block")


def _shown(tree: Tree) -> str:
    return "\n" + text(tree).rstrip()


# ---------------------------------------------------------------- side by side


def test_kernels_side_by_side() -> None:
    graph, entry, _ = neighbours()
    tree = commit(graph, entry, blocks(loops_of(graph, entry).tree)).tree
    assert (
        _shown(tree)
        == """
parallel for block < 10:
  if block < 3:
    for i0 < 8, 21 - 8*block:
      for i1 < 6:
        s0(8*block + i0, i1)
  if 3 <= block < 7:
    for i2 < 4, 25 - 4*block:
      accumulate s1.o:
        for i3 < 30:
          s1(4*block + i2 - 12, i3)
  if 7 <= block < 10:
    vector for i4 < 16, 152 - 16*block:
      s2(16*block + i4 - 112)"""
    )
    assert parse(text(tree)) == tree
    assert_agrees(graph, entry.kernel)
    again = parse_graph(render(graph))
    assert again.kernels()[0].tree == tree


@pytest.mark.parametrize(
    ("extents", "sizes"),
    [((21, 13, 40), (21, 13, 40)), ((2, 4, 17), (2, 4, 17)), ((21, SIZES[1], 40), (21, 0, 40))]
    + [(SIZES, sizes) for sizes in ((21, 13, 40), (0, 1, 16), (16, 0, 0), (0, 0, 0))],
)
def test_side_by_side_computes_the_same(extents: Any, sizes: tuple[int, ...]) -> None:
    values = dict(zip(("m", "n", "k"), sizes))
    graph, entry, names = neighbours(extents)
    commit(graph, entry, blocks(loops_of(graph, entry).tree))
    assert_agrees(graph, entry.kernel)
    data = random_inputs(graph, values)
    found = interpret(graph, data, dtype=np.float64)
    for name, value in expected(data, names).items():
        np.testing.assert_allclose(found[name], value, rtol=1e-12)


def test_tiles_in_two_dimensions_of_open_sizes() -> None:
    """Digits of what a block counts from: ``(block - first) // columns``, with columns that are not known."""
    m, n = size("m"), size("n")
    graph = Graph("tiles")
    x, z = graph.add_input("x", (m, n), F), graph.add_input("z", (5,), F)
    y, w = graph.add_array("y", (m, n), F), graph.add_array("w", (5,), F)
    graph.symbols |= {"m": (x, 0), "n": (x, 1)}
    k = Parameter("i2")
    stages = [
        stage((k,), Access(z, (k,)), Access(w, (k,)), V + 1),
        stage((ROW, COLUMN), Access(x, (ROW, COLUMN)), Access(y, (ROW, COLUMN)), V * 2),
    ]
    entry = graph.add_kernel(Kernel("tiles", {k: 5, ROW: m, COLUMN: n}, stages))
    graph.add_output(y)
    graph.add_output(w)
    first, second = loops_of(graph, entry).tree.children  # type: ignore[union-attr]
    tiled = edits.merge(edits.tile(second, {"i0": 4, "i1": 8}), "i0_block", "i1_block")
    commit(graph, entry, edits.bind(edits.side_by_side([edits.split(first, "i2", 2), tiled]), "block", "parallel"))
    for sizes in ({"m": 9, "n": 17}, {"m": 0, "n": 3}, {"m": 1, "n": 1}):
        data = random_inputs(graph, sizes)
        found = interpret(graph, data)
        np.testing.assert_array_equal(found[y], data[x] * 2)
        np.testing.assert_array_equal(found[w], data[z] + 1)


# ---------------------------------------------------------------- stretched


@pytest.mark.parametrize(("rows", "extent"), [(64, None), (32, 65), (32, 64)])
def test_stretch(rows: int, extent: int | None) -> None:
    graph, entry = copy((rows, 7))
    tree = commit(graph, entry, edits.stretch(loops_of(graph, entry).tree, "i0", 2, extent)).tree
    assert (
        _shown(tree)
        == f"""
for i0 < {extent or 2 * rows}:
  if (i0 + 1) % 2 == 0:
    for i1 < 7:
      s0(i0 // 2, i1)"""
    )
    assert_agrees(graph, entry.kernel)
    data = random_inputs(graph, {})
    (found,) = interpret(graph, data).values()
    np.testing.assert_array_equal(found, next(iter(data.values())) + 1)


def test_guards_go_into_the_loops_that_they_name() -> None:
    graph, entry = copy((8, 7))
    tree = edits.stretch(loops_of(graph, entry).tree, "i0", 2)
    assert (
        _shown(commit(graph, entry, edits.reorder(tree, ["i1", "i0"])).tree)
        == """
for i1 < 7:
  for i0 < 16:
    if (i0 + 1) % 2 == 0:
      s0(i0 // 2, i1)"""
    )


def test_edits_rewrite_conditions() -> None:
    graph, entry = copy((8, 7))
    tree = edits.split(edits.stretch(loops_of(graph, entry).tree, "i0", 2), "i0", 5)
    assert (
        _shown(commit(graph, entry, tree).tree)
        == """
for i0_block < 4:
  for i0 < 5, 16 - 5*i0_block:
    if (i0 + 5*i0_block + 1) % 2 == 0:
      for i1 < 7:
        s0((i0 + 5*i0_block) // 2, i1)"""
    )
    graph, entry = copy((8, 7))
    merged = edits.merge(edits.stretch(loops_of(graph, entry).tree, "i1", 2), "i0", "i1")
    assert (
        _shown(commit(graph, entry, merged).tree)
        == """
for i1 < 112:
  if ((i1 % 14) + 1) % 2 == 0:
    s0(i1 // 14, i1 // 2 % 7)"""
    )


def test_interpreter_of_merged_conditions() -> None:
    graph, entry = copy((8, 7))
    commit(graph, entry, edits.merge(edits.stretch(loops_of(graph, entry).tree, "i1", 2), "i0", "i1"))
    data = random_inputs(graph, {})
    (found,) = interpret(graph, data).values()
    np.testing.assert_array_equal(found, next(iter(data.values())) + 1)


# ---------------------------------------------------------------- refused


def _branch(k: int, *condition: tuple[Any, str, Any]) -> Callable[[Tree], Tree]:
    """Another condition for a branch."""

    def change(tree: Tree) -> Tree:
        assert isinstance(tree, Loop)
        parts = list(tree.body.children)  # type: ignore[union-attr]
        parts[k] = Guard(tuple(relation(*c) for c in condition), parts[k].body)
        return replace(tree, body=schedule.Sequence(tuple(parts)))

    return change


_WRONG: dict[str, tuple[Callable[[Tree], Tree], str]] = {
    "a gap": (_branch(0, (BLOCK, "<", 2)), "never runs"),
    "a branch that runs too far": (_branch(2, (7, "<=", BLOCK)), ""),
    "a branch that begins too early": (_branch(1, (2, "<=", BLOCK), (BLOCK, "<", 7)), "runs"),
    "half of the blocks": (_branch(0, (BLOCK, "<", 3), (BLOCK % 2, "==", 0)), "never runs"),
    "a name without a loop": (_branch(0, (Parameter("q"), "<", 3)), "names q, no loop around it"),
    "a loop further inside": (_branch(0, (Parameter("i0"), "<", 3)), "names i0, no loop around it"),
}


@pytest.mark.parametrize("name", list(_WRONG))
def test_what_does_not_run_once_is_refused(name: str) -> None:
    change, message = _WRONG[name]
    graph, entry, _ = neighbours()
    tree = change(blocks(loops_of(graph, entry).tree))
    if not message:  # the loop ends there anyway
        commit(graph, entry, tree)
        return
    with pytest.raises(IllegalSchedule, match=message):
        commit(graph, entry, tree)


def test_what_is_not_proven_is_refused() -> None:
    graph, entry = copy((8, 7))
    step = size("step")
    tree = loops_of(graph, entry).tree
    assert isinstance(tree, Loop)
    odd = replace(tree, extent=8, body=Guard((relation(tree.param * step, ">=", 0),), tree.body))
    with pytest.raises(IllegalSchedule, match="names step, no loop"):
        commit(graph, entry, odd)
    n = dace.symbolic.symbol("n", dace.int64)
    graph, entry = copy((n, 7))
    tree = loops_of(graph, entry).tree
    assert isinstance(tree, Loop)
    odd = replace(tree, body=Guard((relation(tree.param * n, ">=", 0),), tree.body))
    with pytest.raises(
        IllegalSchedule, match="not proven to run once for each element of its domain.*a size multiplies"
    ):
        commit(graph, entry, odd)


def test_a_condition_that_is_none() -> None:
    body = schedule.Do(0, ())
    with pytest.raises(IllegalSchedule, match="a guard without a condition"):
        Guard((), body)
    with pytest.raises(IllegalSchedule, match="expected relations"):
        Guard((sympy.Ne(BLOCK, 3),), body)
    with pytest.raises(IllegalSchedule, match="expected relations"):
        Guard((sympy.false,), body)
    assert Guard(sympy.And(BLOCK < 3, BLOCK >= 1), body).condition  # type: ignore[arg-type]
    with pytest.raises(Unsupported, match="expected integer arithmetic"):
        parse("for i0 < 4:\n  if i0 != 3:\n    s0(i0)\n")


def test_a_guard_inside_of_accumulators_is_refused() -> None:
    """They would be stored where nothing was collected."""
    graph, entry = total((8, 7))
    tree = loops_of(graph, entry).tree
    assert isinstance(tree, Loop) and isinstance(tree.body, Loop)
    rows, columns = tree.param, tree.body.param
    inside = replace(tree, extent=16, body=edits.loop_over(tree, columns))
    wrong = replace(inside, body=replace(tree.body, body=Guard((relation(rows, "<", 8),), tree.body.body)))
    with pytest.raises(
        IllegalSchedule, match="'if i0 < 8:' stands inside of the accumulators of s0.out0, which are stored"
    ):
        commit(graph, entry, wrong)
    outside = replace(inside, body=Guard((relation(rows, "<", 8),), tree.body))
    commit(graph, entry, outside)
    summed = replace(tree, body=replace(tree.body, extent=20, body=Guard((relation(columns, "<", 7),), tree.body.body)))
    commit(graph, entry, summed)
    data = random_inputs(graph, {})
    (found,) = interpret(graph, data, dtype=np.float64).values()
    np.testing.assert_allclose(found, next(iter(data.values())).astype(float).sum(1), rtol=1e-12)


# ---------------------------------------------------------------- locals behind guards


def _through_a_local() -> tuple[Graph, Any, Tree, Tree]:
    """``t = exp(x); y = t + 1`` with one ``t`` for each row; the two statements in iterations of their own."""
    graph = Graph("local")
    x, y = graph.add_input("x", (5,), F), graph.add_array("y", (5,), F)
    stages = [
        stage((ROW,), Access(x, (ROW,)), Access("t", ()), sympy.exp(V)),
        stage((ROW,), Access("t", ()), Access(y, (ROW,)), V + 1),
    ]
    entry = graph.add_kernel(Kernel("local", {ROW: 5}, stages, (ROW,), {"t": (F, ())}))
    graph.add_output(y)

    def tree(written: int, read: int, *order: int) -> Tree:
        half = sympy.sympify(parse("for t < 10:\n  s0(t // 2)\n").body.index[0])  # type: ignore[union-attr]
        t = next(iter(half.free_symbols))
        remainder = parse("for t < 10:\n  s0(t % 2)\n").body.index[0]  # type: ignore[union-attr]
        parts = [Guard((relation(remainder, "==", k),), schedule.Do(s, (half,))) for s, k in ((0, written), (1, read))]
        return Alloc("t", "thread", Loop(t, 10, schedule.Sequence(tuple(parts[k] for k in order))))

    return graph, entry, tree(0, 1, 0, 1), tree(1, 0, 0, 1)


def test_a_local_between_iterations_is_decided_by_isl() -> None:
    graph, entry, right, wrong = _through_a_local()
    commit(graph, entry, right)
    assert_agrees(graph, entry.kernel)
    data = random_inputs(graph, {})
    (found,) = interpret(graph, data, dtype=np.float64).values()
    np.testing.assert_allclose(found, np.exp(next(iter(data.values())).astype(float)) + 1, rtol=1e-12)
    with pytest.raises(IllegalSchedule, match="t is read before it is written"):
        commit(graph, entry, wrong)
    assert verdict(graph, entry.kernel, wrong) is not None


def test_a_local_that_the_next_iteration_writes_over_is_refused() -> None:
    graph, entry, right, _ = _through_a_local()
    late = edits.bind(right, "t", "vector")
    with pytest.raises(IllegalSchedule, match="t passes between iterations of the vector loop"):
        commit(graph, entry, late)


# ---------------------------------------------------------------- written by hand


def test_a_loop_with_gaps_for_one_statement() -> None:
    """Scaled and shifted, as Listing 2 of APOLLO: every second iteration of the loop is one of the statement."""
    graph, entry, _ = neighbours((6, 12, 40))
    tree = parse(
        """
for c0 < 12:
  if (c0 + 1) % 2 == 0:
    for c1 < 6:
      s0(c0 // 2, c1)
  for c2 < 30:
    s1(c0, c2)
for c3 < 40:
  s2(c3)"""
    )
    commit(graph, entry, tree)
    schedule_check.check(graph, entry.kernel, entry.tree)
    assert_agrees(graph, entry.kernel)
    assert_in_order(graph, entry.kernel, entry.tree, {})

"""Every edit shows before and after; what is not legal is refused by name when it is put in place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import dace
import pytest
import sympy

from daceopt.errors import IllegalSchedule, Unsupported
from daceopt.ir.edits import attempt
from daceopt.ir.edits import schedule_edits as edits
from daceopt.ir.edits.loops import loops_of
from daceopt.ir.graph.graph import Graph
from daceopt.ir.kernel.kernel import Access, Kernel, Stage, param
from daceopt.ir.kernel.tasklet import Assignment
from daceopt.ir.legality.schedule_check import check
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.scalar import scalar
from daceopt.ir.schedule import schedule
from daceopt.ir.schedule.schedule import Alloc, Loop, Sequence, Tree
from daceopt.ir.schedule.schedule_text import parse, text
from tests.ir.isl_checking import assert_agrees

F = dace.float32
N = dace.symbolic.symbol("n", dace.int64)
ROW, COLUMN = param(0), param(1)


def _one(build: Callable[[Builder, str], str], shape: tuple[Any, ...]) -> tuple[Graph, Any]:
    graph = Graph("test")
    x = graph.add_input("x", shape, F)
    graph.add_output(build(Builder(graph), x))
    return graph, graph.kernels()[0]


def copy(shape: tuple[Any, ...] = (64, 70)) -> tuple[Graph, Any]:
    return _one(lambda b, x: b.elementwise(lambda v: v + 1, x), shape)


def total(shape: tuple[Any, ...] = (64, 70)) -> tuple[Graph, Any]:
    return _one(lambda b, x: b.reduce("sum", None, x, axes=(1,)), shape)


def two_stages(*, shifted: bool = False, backwards: bool = False, reduced: bool = False) -> tuple[Graph, Any]:
    """t[j] = exp(x[i, j]) and y[i, j] = t[j]; or t[j + 1] or t[15 - j] read; or t the sum over j."""
    graph = Graph("test")
    x = graph.add_input("x", (8, 16), F)
    y = graph.add_array("y", (8, 16), F)
    v, t, o, r = (scalar.symbol(n, F) for n in "vtor")
    where = () if reduced else (COLUMN,)
    read = () if reduced else (15 - COLUMN if backwards else COLUMN + int(shifted),)
    both, kind = (ROW, COLUMN), "sum" if reduced else None
    exp, plus = Assignment(t, sympy.exp(v), F), Assignment(o, r + 1, F)
    first = Stage(both, {"v": Access(x, both)}, {"t": Access("row", where, kind)}, (exp,))
    second = Stage(both, {"r": Access("row", read)}, {"o": Access(y, both)}, (plus,))
    local = {"row": (F, () if reduced else (17,))}
    graph.add_kernel(Kernel("pair", {ROW: 8, COLUMN: 16}, [first, second], (ROW,), local))
    graph.add_output(y)
    return graph, graph.kernels()[0]


def commit(graph: Graph, entry: Any, tree: Tree) -> Any:
    """Whatever these tests put in place, isl finds legal, and gives it back."""
    node = attempt.commit(graph, entry, tree)
    assert_agrees(graph, node.kernel)
    return node


def _shown(tree: Tree) -> str:
    return "\n" + text(tree).rstrip()


def test_split() -> None:
    graph, entry = copy()
    tree = edits.split(loops_of(graph, entry).tree, "i1", 32)
    assert (
        _shown(commit(graph, entry, tree).tree)
        == """
for i0 < 64:
  for i1_block < 3:
    for i1 < 32, 70 - 32*i1_block:
      s0(i0, i1 + 32*i1_block)"""
    )


def test_split_of_a_tile() -> None:
    graph, entry = copy((10, 1000))
    tree = edits.split(edits.split(loops_of(graph, entry).tree, "i1", 300), "i1", 70, "part")
    assert (
        _shown(commit(graph, entry, tree).tree)
        == """
for i0 < 10:
  for i1_block < 4:
    for i1_part < 5:
      for i1 < 70, min(300, 1000 - 300*i1_block) - 70*i1_part:
        s0(i0, i1 + 300*i1_block + 70*i1_part)"""
    )


def test_tile() -> None:
    graph, entry = copy((64, 64))
    tree = edits.tile(loops_of(graph, entry).tree, {"i0": 16, "i1": 32})
    assert (
        _shown(commit(graph, entry, tree).tree)
        == """
for i0_block < 4:
  for i1_block < 2:
    for i0 < 16:
      for i1 < 32:
        s0(i0 + 16*i0_block, i1 + 32*i1_block)"""
    )


def test_reorder_moves_the_accumulators() -> None:
    graph, entry = total()
    tree = edits.reorder(loops_of(graph, entry).tree, ["i1", "i0"])
    assert (
        _shown(commit(graph, entry, tree).tree)
        == """
accumulate s0.out0:
  for i1 < 70:
    for i0 < 64:
      s0(i0, i1)"""
    )


def test_tiles_of_one_name_are_refused() -> None:
    tree = edits.split(loops_of(*copy()).tree, "i1", 32)
    with pytest.raises(IllegalSchedule, match="there is a loop over i1_block already; give these tiles another name"):
        edits.split(tree, "i1", 8)


def test_merge_and_split_again() -> None:
    graph, entry = copy((6, 7))
    tree = edits.bind(edits.split(edits.merge(loops_of(graph, entry).tree, "i0", "i1"), "i1", 8), "i1", "vector")
    assert (
        _shown(commit(graph, entry, tree).tree)
        == """
for i1_block < 6:
  vector for i1 < 8, 42 - 8*i1_block:
    s0((i1 + 8*i1_block) // 7, (i1 + 8*i1_block) % 7)"""
    )


def test_fuse_and_distribute() -> None:
    graph, entry = two_stages()
    fused = edits.fuse_loops(loops_of(graph, entry).tree, "i1")
    assert (
        _shown(commit(graph, entry, fused).tree)
        == """
for i0 < 8:
  local row in thread:
    for i1 < 16:
      s0(i0, i1)
      s1(i0, i1)"""
    )
    apart = edits.distribute(loops_of(graph, entry).tree, "i1")
    assert (
        _shown(commit(graph, entry, apart).tree)
        == """
for i0 < 8:
  local row in thread:
    for i1 < 16:
      s0(i0, i1)
    for i1 < 16:
      s1(i0, i1)"""
    )


def test_a_shared_reduction_is_private_to_each_thread() -> None:
    graph, entry = total()
    tree = edits.bind(edits.reorder(loops_of(graph, entry).tree, ["i1", "i0"]), "i1", "parallel")
    assert text(commit(graph, entry, tree).tree).startswith("accumulate private s0.out0:\n  parallel for i1 < 70:")


def test_unroll_needs_a_number() -> None:
    n = dace.symbolic.symbol("n", dace.int64)
    graph, entry = copy((4, n))
    assert "unroll for i0 < 4:" in text(edits.unroll(loops_of(graph, entry).tree, "i0"))
    with pytest.raises(IllegalSchedule, match="extent of i1 is n; expected a number"):
        edits.unroll(loops_of(graph, entry).tree, "i1")


# ---------------------------------------------------------------- what is refused


def _with_loop(tree: Tree, name: str, **changes: Any) -> Tree:
    return schedule.map_tree(
        tree, lambda n: replace(n, **changes) if isinstance(n, Loop) and str(n.param) == name else n
    )


def _shorter(tree: Tree) -> Tree:
    return _with_loop(tree, "i1", extent=69)


def _tile_beyond(tree: Tree) -> Tree:
    return _with_loop(edits.split(tree, "i1", 32), "i1", rest=None)


def _tile_dropped(tree: Tree) -> Tree:
    return _with_loop(edits.split(tree, "i1", 32), "i1_block", extent=2)


def _tile_too_many(tree: Tree) -> Tree:
    """Right for most sizes."""
    return _with_loop(edits.split(tree, "i0", 32), "i0_block", extent=sympy.floor(N / 32) + 1)


def _twice(tree: Tree) -> Tree:
    return Loop(param(7), 2, tree)


def _left_out(tree: Tree) -> Tree:
    return schedule.map_tree(tree, lambda n: Sequence(n.children[:1]) if isinstance(n, Sequence) else n)


def _backwards(tree: Tree) -> Tree:
    return schedule.map_tree(tree, lambda n: Sequence(n.children[::-1]) if isinstance(n, Sequence) else n)


def _vector_outside(tree: Tree) -> Tree:
    return edits.bind(tree, "i0", "vector")


def _shared_local(tree: Tree) -> Tree:
    """The local outside of the parallel loop."""
    bare = schedule.map_tree(tree, lambda n: n.body if isinstance(n, Alloc) else n)
    return Alloc("row", "thread", edits.bind(bare, "i0", "parallel"))


def _two_threads(tree: Tree) -> Tree:
    tree = edits.split(edits.bind(tree, "i0", "parallel"), "i1", 32)
    return edits.bind(tree, "i1", "parallel")


def _unknown_scope(tree: Tree) -> Tree:
    return schedule.map_tree(tree, lambda n: replace(n, scope="texture") if isinstance(n, Alloc) else n)


_WRONG = {
    "a loop that ends early": (copy, _shorter, "i1 takes 69 values; expected 70"),
    "a partial tile that runs too far": (copy, _tile_beyond, r"takes 32 \* 3 values; expected 70"),
    "a tile that drops the remainder": (copy, _tile_dropped, r"takes 32 \* 2 values; expected 70"),
    "a tile too many where tiles divide the size": (lambda: copy((N, 4)), _tile_too_many, "expected n"),
    "statements that run twice": (copy, _twice, "runs again for each iteration of i7"),
    "a statement that is left out": (two_stages, _left_out, "statement 1 stands in it 0 times"),
    "a local that is read before it is written": (two_stages, _backwards, "s1 reads row before s0 writes it"),
    "loops in a vector loop": (copy, _vector_outside, "i1 stands inside of a vector loop"),
    "a local that threads share": (two_stages, _shared_local, "would share the local row"),
    "threads in threads": (copy, _two_threads, "inside of another thread's loop"),
    "memory that the machine has not": (two_stages, _unknown_scope, "row in texture; expected one of register, thread"),
    "a fusion with a reduction": (
        lambda: two_stages(reduced=True),
        lambda tree: edits.fuse_loops(tree, "i1"),
        "row is read in the loop over i1, which it is reduced over",
    ),
    "a fusion with a neighbour": (
        lambda: two_stages(shifted=True),
        lambda tree: edits.fuse_loops(tree, "i1"),
        "row is read at another iteration of i1 than writes it",
    ),
    "a loop that does not exist": (copy, lambda tree: edits.split(tree, "i9", 4), "no loop over i9; the loops are"),
    "tiles of nothing": (copy, lambda tree: edits.split(tree, "i1", 0), "tiles of 0 iterations of i1"),
    "an unknown kind": (copy, lambda tree: edits.bind(tree, "i1", "cluster"), "a cluster loop; expected one of"),
    "an order of loops apart": (two_stages, lambda tree: edits.reorder(tree, ["i1", "i0"]), "directly inside"),
}


@pytest.mark.parametrize("name", list(_WRONG))
def test_an_illegal_edit_is_refused(name: str) -> None:
    build, edit, message = _WRONG[name]
    graph, entry = build()
    with pytest.raises(IllegalSchedule, match=message):
        commit(graph, entry, edit(loops_of(graph, entry).tree))
    assert entry.tree is None


def test_a_reduction_without_its_accumulator_is_refused() -> None:
    graph, entry = total()
    kernel = entry.kernel
    with pytest.raises(IllegalSchedule, match=r"s0\.out0 is reduced over i1 outside of its accumulator"):
        check(graph, kernel, loops_of(graph, entry).tree)
    threads = edits.bind(loops_of(graph, entry).tree, "i1", "parallel")
    shared = schedule.map_tree(
        schedule.add_accumulators(threads, kernel),
        lambda n: replace(n, private=False) if isinstance(n, schedule.Accumulate) else n,
    )
    with pytest.raises(IllegalSchedule, match="over the parallel loop i1 without a private accumulator"):
        check(graph, kernel, shared)


def test_text_is_read_back() -> None:
    graph, entry = two_stages(reduced=True)
    tree = commit(graph, entry, edits.bind(edits.split(loops_of(graph, entry).tree, "i1", 5), "i0", "parallel")).tree
    assert parse(text(tree)) == tree


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("for i0 < 4:\n", "expected a body"),
        ("while i0 < 4:\n  s0(i0)\n", "expected a loop, a local"),
        ("for i0 < __import__('os'):\n  s0(i0)\n", "expected integer arithmetic"),
        ("fast for i0 < 4:\n  s0(i0)\n", "a fast loop; expected one of"),
        ("for i0 < 4:\n  s0(i0)\n      s1(i0)\n", "its indentation fits no loop"),
        ("for i0 < 4:\n  accumulate nothing:\n    s0(i0)\n", "expected statements and connectors"),
    ],
)
def test_text_that_is_no_schedule_is_refused(source: str, message: str) -> None:
    with pytest.raises(Unsupported, match=message):
        parse(source)

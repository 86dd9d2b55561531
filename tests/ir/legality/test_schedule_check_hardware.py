"""Schedules for an accelerator: what fits, and ten that do not, each refused with the size or the dependence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import dace
import numpy as np
import pytest

from daceopt.errors import IllegalSchedule
from daceopt.ir.edits import schedule_edits as edits
from daceopt.ir.edits.attempt import commit
from daceopt.ir.edits.loops import loops_of
from daceopt.ir.graph.graph import Graph
from daceopt.ir.interpreter.interpret import interpret
from daceopt.ir.kernel.kernel import Access
from daceopt.ir.kernel.tasklet import Assignment
from daceopt.ir.legality.hardware import LANES, LIMITS, TargetLimits, Threads
from daceopt.ir.legality.schedule_check import check
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.scalar import scalar
from daceopt.ir.schedule import schedule
from daceopt.ir.schedule.schedule import Accumulate, Alloc, Loop, Tree
from daceopt.ir.schedule.schedule_text import parse, text
from tests.ir.edits.test_schedule_edits import copy, total, two_stages
from tests.ir.isl_checking import assert_agrees

F = dace.float32


def _columns() -> tuple[Graph, Any]:
    graph = Graph("test")
    x = graph.add_input("x", (64, 70), F)
    graph.add_output(Builder(graph).reduce("max", None, x, axes=(0,)))
    return graph, graph.kernels()[0]


def _bound(tree: Tree, **kinds: str) -> Tree:
    for param, kind in kinds.items():
        tree = edits.bind(tree, param, kind)
    return tree


def _tiled(tree: Tree) -> Tree:
    """for i0, i1 -> grid for i0: for i1_chunk: warp for i1."""
    return _bound(edits.split(tree, "i1", LANES, "chunk"), i0="grid", i1="warp")


def _threads(tree: Tree, threads: int) -> Tree:
    return _bound(edits.split(tree, "i1", threads, "chunk"), i0="grid", i1="block")


def _with_scope(tree: Tree, scope: str) -> Tree:
    return schedule.map_tree(tree, lambda n: replace(n, scope=scope) if isinstance(n, Alloc) else n)


def _put(case: tuple[Graph, Any], edit: Callable[[Tree], Tree]) -> tuple[Graph, Any]:
    graph, entry = case
    commit(graph, entry, edit(loops_of(graph, entry).tree))
    return graph, entry


# ---------------------------------------------------------------- what fits


def _rows_of_warps(tree: Tree) -> Tree:
    tree = _bound(edits.split(tree, "i1", LANES, "chunk"), i1="warp")
    return _bound(edits.split(tree, "i0", 8), i0_block="grid", i0="block")


def _row_of_a_block(tree: Tree) -> Tree:
    tree = edits.split(edits.split(tree, "i1", 64, "chunk"), "i1", LANES, "warp")
    return _bound(tree, i0="grid", i1_warp="block", i1="warp")


def _stripes_of_columns(tree: Tree) -> Tree:
    tree = edits.split(edits.split(tree, "i1", LANES), "i0", 8, "chunk")
    tree = edits.reorder(tree, ["i1_block", "i0_chunk", "i0", "i1"])
    return _bound(tree, i1_block="grid", i0="block", i1="warp")


_RIGHT: dict[str, tuple[Callable[[], tuple[Graph, Any]], Callable[[Tree], Tree]]] = {
    "threads": (copy, lambda tree: _threads(tree, 64)),
    "lanes": (copy, _tiled),
    "a warp for each row": (total, _rows_of_warps),
    "a block for each row": (total, _row_of_a_block),
    "columns": (_columns, _stripes_of_columns),
    "a shared row": (two_stages, lambda tree: _with_scope(_bound(tree, i0="grid", i1="warp"), "shared")),
    "a shared row for each warp": (
        two_stages,
        lambda tree: _with_scope(_bound(edits.split(tree, "i0", 3), i0_block="grid", i0="block", i1="warp"), "shared"),
    ),
    "a sum that all lanes know": (lambda: two_stages(reduced=True), lambda tree: _bound(tree, i0="grid", i1="warp")),
}


@pytest.mark.parametrize("name", list(_RIGHT))
def test_a_schedule_is_read_back_agreed_upon_and_executed(name: str) -> None:
    build, edit = _RIGHT[name]
    graph, entry = build()
    data = {graph.inputs[0]: np.random.default_rng(0).standard_normal(graph.shape(graph.inputs[0]))}
    expected = interpret(graph, data, dtype=np.float64)[graph.outputs[0]]
    _put((graph, entry), edit)
    assert parse(text(entry.tree)) == entry.tree
    assert_agrees(graph, entry.kernel)
    found = interpret(graph, data, dtype=np.float64)[graph.outputs[0]]
    np.testing.assert_allclose(found, expected, rtol=1e-13)


def test_reductions_collect_across_the_lanes_that_they_reduce_over() -> None:
    _, entry = _put(total(), _row_of_a_block)
    assert "accumulate block s0.out0:" in text(entry.tree)
    _, entry = _put(total(), _rows_of_warps)
    assert (
        text(entry.tree)
        == """\
grid for i0_block < 8:
  block for i0 < 8:
    accumulate warp s0.out0:
      for i1_chunk < 3:
        warp for i1 < 32, 70 - 32*i1_chunk:
          s0(i0 + 8*i0_block, i1 + 32*i1_chunk)
"""
    )


def test_threads_are_numbered_the_innermost_loop_first() -> None:
    _graph, entry = _put(
        copy((64, 70)), lambda tree: _bound(edits.tile(tree, {"i0": 4, "i1": 16}), i0="block", i1="block")
    )
    threads = Threads(entry.tree)
    inner, outer = (edits.loop_over(entry.tree, p) for p in ("i1", "i0"))
    assert (threads.count, threads.lanes) == (64, 1)
    assert (threads.place(inner).stride, threads.place(inner).below) == (1, 16)
    assert (threads.place(outer).stride, threads.place(outer).below) == (16, None)


# ---------------------------------------------------------------- what does not


def _reduced_inside_of_a_block(tree: Tree) -> Tree:
    tree = edits.reorder(edits.tile(tree, {"i0": 4, "i1": 8}), ["i0_block", "i0", "i1_block", "i1"])
    return _bound(tree, i0_block="grid", i0="block", i1="block")


def _not_placed(case: tuple[Graph, Any], edit: Callable[[Tree], Tree]) -> None:
    """A tree as somebody may write it, accumulators and all."""
    graph, entry = case
    check(graph, entry.kernel, edit(schedule.schedule_of(entry.kernel)))


def _committed(case: tuple[Graph, Any], edit: Callable[[Tree], Tree]) -> None:
    _put(case, edit)


def _across(tree: Tree, how: str) -> Tree:
    return schedule.map_tree(tree, lambda n: replace(n, across=how) if isinstance(n, Accumulate) else n)


def _lane_in_shared_memory(tree: Tree) -> Tree:
    """The local inside of the lane that writes it."""

    def change(node: Tree) -> Tree:
        return (
            replace(node, body=Alloc("row", "shared", node.body))
            if isinstance(node, Loop) and node.kind == "warp"
            else node
        )

    bare = schedule.map_tree(tree, lambda n: n.body if isinstance(n, Alloc) else n)
    return schedule.map_tree(edits.fuse_loops(_bound(bare, i0="grid", i1="warp"), "i1"), change)


@dataclass(frozen=True)
class Host:
    """A node of a tree that only a CPU knows."""

    body: Tree


def _with_host_code(tree: Tree) -> Tree:
    return schedule.map_tree(tree, lambda n: Host(n) if isinstance(n, Loop) and n.kind == "warp" else n)  # type: ignore[arg-type,return-value]


_LARGE = 1 << 14
_WRONG: dict[str, tuple[Any, Any, Any, str]] = {
    "too many threads": (
        _committed,
        lambda: copy((8, 4000)),
        lambda tree: _threads(tree, 2048),
        "a block of 2048 threads; expected at most 1024",
    ),
    "too many warps": (
        _committed,
        copy,
        lambda tree: _bound(edits.split(tree, "i1", LANES, "chunk"), i0="block", i1="warp"),
        "a block of 2048 threads; expected at most 1024",
    ),
    "a warp of 33 lanes": (
        _committed,
        copy,
        lambda tree: _bound(edits.split(tree, "i1", 33), i1="warp", i0="grid"),
        "the warp loop over i1 has 33 iterations; expected at most 32 lanes",
    ),
    "a block of unknown size": (
        _committed,
        lambda: copy((8, dace.symbolic.symbol("n", dace.int64))),
        lambda tree: _bound(tree, i0="grid", i1="block"),
        "the block loop over i1 has n iterations; expected a number",
    ),
    "more shared memory than there is": (
        _committed,
        lambda: _long_rows(_LARGE),
        lambda tree: _with_scope(_tiled(tree), "shared"),
        "its threads share 65536 bytes; expected at most 49152",
    ),
    "a shared local of one thread": (
        _committed,
        two_stages,
        _lane_in_shared_memory,
        "the local row is shared, but each iteration of i1 is one thread",
    ),
    "a shared local without threads": (
        _committed,
        two_stages,
        lambda tree: _with_scope(tree, "shared"),
        "row is shared, but there are no threads of a block",
    ),
    "a part of a row in each thread": (
        _committed,
        two_stages,
        lambda tree: _bound(tree, i0="grid", i1="warp"),
        "s0 writes row in the warp loop over i1, so each thread has a part of it only",
    ),
    "a reduction over blocks": (
        _committed,
        total,
        lambda tree: _bound(tree, i0="serial", i1="grid"),
        "s0.out0 is reduced over the grid loop i1: blocks do not wait",
    ),
    "lanes that reduce alone": (
        _not_placed,
        lambda: _put(total(), _rows_of_warps),
        lambda tree: _across(tree, ""),
        "reduced over the warp loop i1; expected accumulators across a warp",
    ),
    "warps that reduce alone": (
        _not_placed,
        lambda: _put(total(), _row_of_a_block),
        lambda tree: _across(tree, "warp"),
        "the block loop i1_warp, the warp loop i1; expected accumulators across a block",
    ),
    "what no lane reduces, collected from all of them": (
        _not_placed,
        lambda: _put(total(), lambda tree: _bound(edits.split(tree, "i0", 8), i0="warp", i0_block="grid")),
        lambda tree: _across(tree, "warp"),
        "s0.out0 is reduced over no threads; expected no collective accumulators",
    ),
    "a collective operation of some warps": (
        _committed,
        total,
        _reduced_inside_of_a_block,
        "accumulators across a block stand inside of the block loop i0",
    ),
    "a grid inside of a block": (
        _committed,
        copy,
        lambda tree: _bound(edits.split(tree, "i0", 8), i0_block="block", i0="grid"),
        "the grid loop over i0 does not stand outside of everything else",
    ),
    "a block inside of a lane": (
        _committed,
        copy,
        lambda tree: _bound(edits.split(tree, "i0", 8), i0="warp", i1="block"),
        "the block loop over i1 stands inside of a lane",
    ),
    "a CPU's threads": (
        _committed,
        copy,
        lambda tree: _bound(tree, i0="parallel", i1="warp"),
        "one of a CPU's threads",
    ),
    "what only the host knows": (
        _not_placed,
        lambda: _put(copy(), _tiled),
        _with_host_code,
        "a host, which an accelerator does not run",
    ),
    "a neighbour's element": (
        _committed,
        lambda: two_stages(shifted=True),
        lambda tree: _with_scope(edits.fuse_loops(_bound(tree, i0="grid", i1="warp"), "i1"), "shared"),
        "row is read at another iteration of i1 than writes it",
    ),
}


def _long_rows(length: int) -> tuple[Graph, Any]:
    graph, entry = two_stages()
    kernel = entry.kernel
    output = graph.outputs[0]
    wide = Graph("wide")
    x = wide.add_input("x", (8, length), F)
    y = wide.add_array("y", (8, length), F)
    names = {graph.inputs[0]: x, output: y}
    columns = next(p for p in kernel.extents if p not in kernel.outer)
    long = replace(kernel, extents={**kernel.extents, columns: length}, locals={"row": (F, (length,))})
    wide.add_kernel(long.over(names))
    wide.add_output(y)
    return wide, wide.kernels()[0]


@pytest.mark.parametrize("name", list(_WRONG))
def test_a_wrong_schedule_is_refused(name: str) -> None:
    put, build, edit, reason = _WRONG[name]
    case = build()
    before = [n.tree for n in case[0].kernels()]
    with pytest.raises(IllegalSchedule, match=reason):
        put(case, edit)
    assert [n.tree for n in case[0].kernels()] == before


def test_the_limits_are_those_of_the_graphs_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LIMITS, "small", TargetLimits(threads=64, shared=32))
    graph, entry = copy()
    graph.options = replace(graph.options, target="small")
    with pytest.raises(IllegalSchedule, match="a block of 70 threads; expected at most 64"):
        _put((graph, entry), lambda tree: _bound(tree, i0="grid", i1="block"))
    graph, entry = two_stages()
    graph.options = replace(graph.options, target="small")
    with pytest.raises(IllegalSchedule, match="its threads share 68 bytes; expected at most 32"):
        _put((graph, entry), lambda tree: _with_scope(_bound(tree, i0="grid", i1="warp"), "shared"))


def test_a_gather_of_what_other_lanes_write_is_refused() -> None:
    """A lane reads the whole row while the others are still writing it."""
    graph, entry = two_stages()
    kernel = entry.kernel
    reader = kernel.stages[1]
    index = scalar.symbol("o", F)
    code = Assignment(index, scalar.load(scalar.symbol("r", F), 3), F)
    reader = replace(reader, reads={"r": Access("row", (None,))}, assignments=(code,))
    graph.remove(entry)
    entry = graph.add_kernel(replace(kernel, stages=[kernel.stages[0], reader]))
    edit = lambda tree: _with_scope(_bound(tree, i0="grid", i1="warp"), "shared")  # noqa: E731
    _put((graph, entry), edit)  # one loop after the other: the row is whole
    with pytest.raises(IllegalSchedule, match="row is read at another iteration of i1"):
        _put((graph, entry), lambda tree: edits.fuse_loops(edit(tree), "i1"))


def _merged_packs() -> tuple[Graph, Any, str]:
    """Packs of four of two loops that were made one, which blocks of threads run."""
    graph, entry = copy((6, 24))
    tree = edits.merge(edits.split(loops_of(graph, entry).tree, "i1", 4, "pack"), "i0", "i1_pack")
    return graph, entry, text(edits.split(tree, "i1_pack", 12, "block"))


def test_packs_of_merged_loops_are_understood() -> None:
    graph, entry, tree = _merged_packs()
    assert "4*((i1_pack + 12*i1_pack_block) % 6) + i1)" in tree
    kernel = entry.kernel
    check(graph, kernel, parse(tree))
    assert_agrees(graph, kernel, parse(tree))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("% 6", "% 3"),
        ("// 6", "// 4"),
        ("4*((", "2*(("),
        ("4*((", "8*(("),
        ("i1 < 4", "i1 < 3"),
        ("i1_pack < 12", "i1_pack < 11"),
        ("i1_pack_block < 3", "i1_pack_block < 2"),
        ("12*i1_pack_block)", "13*i1_pack_block)"),
        ("+ i1)", "+ i1_pack)"),
    ],
)
def test_packs_that_miss_elements_are_refused(old: str, new: str) -> None:
    graph, entry, tree = _merged_packs()
    assert old in tree
    with pytest.raises(IllegalSchedule):
        check(graph, entry.kernel, parse(tree.replace(old, new)))

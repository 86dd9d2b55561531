"""Two opinions on what a schedule may do: the check that every schedule passes, and isl's on relations of instances."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import Any

import islpy as isl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daceopt.errors import IllegalSchedule, Unsupported
from daceopt.ir.edits import schedule_edits as edits
from daceopt.ir.edits.attempt import commit
from daceopt.ir.edits.loops import loops_of
from daceopt.ir.legality.schedule_check import check
from daceopt.ir.polyhedral.dependences import dependences
from daceopt.ir.schedule import schedule
from daceopt.ir.schedule.schedule import Accumulate, Alloc, Loop, Sequence, Tree, add_accumulators
from tests.ir.edits.test_schedule_edits import _WRONG, copy, total, two_stages
from tests.ir.isl_checking import assert_agrees, assert_computes, verdict
from tests.ir.schedule_drawing import KERNELS, edited, miscollected

_MADE = {name: make() for name, make in KERNELS.items()}


@given(st.sampled_from(list(KERNELS)), st.randoms(use_true_random=False))
@settings(max_examples=120)
def test_what_the_check_accepts_isl_accepts(name: str, random: Random) -> None:
    graph, entry = _MADE[name]
    kernel = entry.kernel
    tree = miscollected(random, add_accumulators(edited(random, loops_of(graph, entry).tree), kernel))
    try:
        check(graph, kernel, tree)
    except (IllegalSchedule, Unsupported):
        return
    with suppress(Unsupported):  # digits of open extents that count from elsewhere
        assert_agrees(graph, kernel, tree)
    if name != "shifted local":  # which reads an element that nobody writes
        assert_computes(graph, entry, tree)


# ---------------------------------------------------------------- dependences


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "{ S0[i, j] -> S1[i, j] : 0 <= i < 8 and 0 <= j < 16 }"),
        ({"shifted": True}, "{ S0[i, j] -> S1[i, j - 1] : 0 <= i < 8 and 1 <= j < 16 }"),
        ({"reduced": True}, "{ S0[i, j] -> S1[i, k] : 0 <= i < 8 and 0 <= j < 16 and 0 <= k < 16 }"),
    ],
)
def test_dependences_through_locals(options: dict[str, bool], expected: str) -> None:
    graph, entry = two_stages(**options)
    assert dependences(graph, entry.kernel).is_equal(isl.UnionMap(expected))


def test_a_kernel_of_one_statement_has_no_dependences() -> None:
    _graph, entry = total()
    assert dependences(None, entry.kernel).is_empty()


# ---------------------------------------------------------------- planted

_BY_DEPENDENCES = {
    "a loop that ends early": "never runs",
    "a partial tile that runs too far": "runs { S0",
    "a tile that drops the remainder": "never runs",
    "statements that run twice": "more than once",
    "a statement that is left out": "has statements [0]",
    "a local that is read before it is written": "row is read before it is written: { S0",
    "a local that threads share": "row is shared by iterations of the parallel loop over i0",
    "a fusion with a reduction": "row is read before it is written",
    "a fusion with a neighbour": "row is read before it is written",
}


@pytest.mark.parametrize("name", list(_BY_DEPENDENCES))
def test_isl_refuses_what_the_check_refuses(name: str) -> None:
    build, edit, _ = _WRONG[name]
    graph, entry = build()
    kernel = entry.kernel
    found = verdict(graph, kernel, add_accumulators(edit(loops_of(graph, entry).tree), kernel))
    assert found is not None and _BY_DEPENDENCES[name] in found


def _each(kind: type, change: Callable[[Any], Tree]) -> Callable[[Tree], Tree]:
    return lambda tree: schedule.map_tree(tree, lambda n: change(n) if isinstance(n, kind) else n)


def _one_local_for_all_rows(tree: Tree) -> Tree:
    """for i0: local row: { f  g }    -->    local row: { for i0: f    for i0: g }"""
    assert isinstance(tree, Loop) and isinstance(tree.body, Alloc) and isinstance(tree.body.body, Sequence)
    return replace(tree.body, body=Sequence(tuple(replace(tree, body=part) for part in tree.body.body.children)))


def _a_local_for_each_element(tree: Tree) -> Tree:
    """for i0: local row: for i1: { f  g }    -->    for i0: for i1: local row: { f  g }"""
    fused = edits.fuse_loops(tree, "i1")
    return _each(Alloc, lambda n: replace(n.body, body=replace(n, body=n.body.body)))(fused)


def _read_while_collecting(tree: Tree) -> Tree:
    """accumulate: { for i1: f    for i1: g }"""
    first = next(n for n, _ in schedule.walk(tree) if isinstance(n, Accumulate))
    bare = schedule.without_accumulators(tree)
    return _each(Sequence, lambda n: replace(first, body=n))(bare)


# what was accepted before isl was asked
_PLANTED: dict[str, tuple[dict[str, bool], Callable[[Tree], Tree], str, str]] = {
    "a local that the next row writes over": (
        {},
        _one_local_for_all_rows,
        "row holds one iteration of i0 and s0 writes it in the loop over i0, which ends before s1 reads it",
        "row is overwritten by another iteration before it is read",
    ),
    "a local of which one element lives": (
        {"shifted": True},
        _a_local_for_each_element,
        "row is read at another iteration of i1 than writes it",
        "row is read before it is written",
    ),
    "a sum that is read while it is collected": (
        {"reduced": True},
        _read_while_collecting,
        "row is read inside of its accumulator",
        "s0.t is read before it is stored",
    ),
}


@pytest.mark.parametrize("name", list(_PLANTED))
def test_both_refuse(name: str) -> None:
    options, plant, checked, by_isl = _PLANTED[name]
    graph, entry = two_stages(**options)
    kernel = entry.kernel
    tree = plant(add_accumulators(loops_of(graph, entry).tree, kernel))
    with pytest.raises(IllegalSchedule, match=checked):
        check(graph, kernel, tree)
    found = verdict(graph, kernel, tree)
    assert found is not None and by_isl in found


def test_a_local_indexed_by_the_loop_may_live_around_it() -> None:
    graph, entry = two_stages()
    kernel = entry.kernel
    tree = edits.fuse_loops(loops_of(graph, entry).tree, "i1")
    outside = schedule.map_tree(tree, lambda n: n.body if isinstance(n, Alloc) else n)
    check(graph, kernel, Alloc("row", "thread", outside))
    assert_agrees(graph, kernel, Alloc("row", "thread", outside))


def test_registers_are_for_statements_one_behind_the_other() -> None:
    graph, entry = two_stages()
    register = _each(Alloc, lambda n: replace(n, scope="register"))
    with pytest.raises(IllegalSchedule, match="s1 reads row elsewhere than it is written; expected row in thread"):
        commit(graph, entry, register(loops_of(graph, entry).tree))
    commit(graph, entry, register(edits.fuse_loops(loops_of(graph, entry).tree, "i1")))


def test_tiles_of_one_iteration_are_legal() -> None:
    graph, entry = copy((6, 7))
    commit(graph, entry, edits.split(loops_of(graph, entry).tree, "i1", 1))
    assert_agrees(graph, entry.kernel)

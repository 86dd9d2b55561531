"""Schedules as isl's schedule trees: what a loop becomes, and that isl runs all in the same order."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import Any

import dace
import islpy as isl
import pytest
import sympy

from daceopt.errors import IllegalSchedule, Unsupported
from daceopt.ir.edits import schedule_edits as edits
from daceopt.ir.edits.attempt import commit
from daceopt.ir.edits.loops import loops_of
from daceopt.ir.polyhedral.schedule_isl import kind_of, to_isl
from daceopt.ir.schedule.schedule import Loop, Tree
from daceopt.ir.schedule.schedule_text import parse, text
from tests.ir.edits.test_schedule_edits import copy, two_stages
from tests.ir.isl_checking import assert_agrees, assert_in_order
from tests.ir.schedule_drawing import KERNELS, edited

M, N = (dace.symbolic.symbol(name, dace.int64) for name in "mn")


def _bands(found: isl.Schedule) -> list[str]:
    """The partial schedules, outermost first."""
    shown: list[str] = []

    def visit(node: isl.ScheduleNode) -> None:
        if kind_of(node) == isl.schedule_node_type.band:
            shown.append(str(node.band_get_partial_schedule()))
        for k in range(node.n_children()):
            visit(node.child(k))

    visit(found.get_root())
    return shown


def _there(graph: Any, entry: Any, tree: Tree) -> isl.Schedule:
    return to_isl(graph, entry.kernel, tree)


def test_a_tile_is_a_quotient_and_a_remainder() -> None:
    graph, entry = copy()
    assert _bands(_there(graph, entry, edits.split(loops_of(graph, entry).tree, "i1", 32))) == [
        "i0[{ S0[i0, i1] -> [(i0)] }]",
        "i1_block[{ S0[i0, i1] -> [(floor((i1)/32))] }]",
        "i1[{ S0[i0, i1] -> [((i1) mod 32)] }]",
    ]


def test_a_merged_loop_is_a_sum() -> None:
    graph, entry = copy((N, 7))
    tree = edits.merge(loops_of(graph, entry).tree, "i0", "i1")
    assert _bands(_there(graph, entry, tree)) == ["i1[{ S0[i0, i1] -> [(7i0 + i1)] }]"]
    assert_agrees(graph, entry.kernel, tree)


def test_a_merged_loop_with_a_size_inside_is_a_band_of_two() -> None:
    graph, entry = copy((M, N))
    tree = edits.merge(loops_of(graph, entry).tree, "i0", "i1")
    assert _bands(_there(graph, entry, tree)) == ["i1[{ S0[i0, i1] -> [(i0)] }, { S0[i0, i1] -> [(i1)] }]"]
    assert_agrees(graph, entry.kernel, tree)


def test_a_tile_of_such_a_loop_is_not_affine() -> None:
    graph, entry = copy((M, N))
    tree = edits.split(edits.merge(loops_of(graph, entry).tree, "i0", "i1"), "i1", 8)
    with pytest.raises(Unsupported, match="a division by n; isl takes positive numbers"):
        _there(graph, entry, tree)


def test_sizes_that_are_rounded_keep_their_form() -> None:
    """Half of a size, squared, in the index: a quotient of sizes is none of a loop."""
    half = sympy.floor((N - 1) / 2) + 1
    graph, entry = copy((4, half, half))
    tree = edits.merge(edits.merge(loops_of(graph, entry).tree, "i1", "i2"), "i0", "i2")
    assert "// ((((n - 1) // 2) + 1)**2)" in text(tree)
    assert parse(text(tree)) == tree
    assert_agrees(graph, entry.kernel, tree)


def test_a_product_of_sizes_is_a_parameter() -> None:
    graph, entry = copy((M * N, 4))
    tree = edits.split(loops_of(graph, entry).tree, "i0", 16)
    there = _there(graph, entry, tree)
    assert "[m_n] -> { S0[i0, i1] : 0 <= i0 < m_n and 0 <= i1 <= 3 }" in str(there)
    assert_agrees(graph, entry.kernel, tree)


def test_marks_are_the_lines_of_the_program() -> None:
    graph, entry = two_stages(reduced=True)
    tree = commit(graph, entry, edits.bind(loops_of(graph, entry).tree, "i0", "parallel")).tree
    shown = str(_there(graph, entry, tree))
    for line in ("parallel for i0 < 8:", "local row in thread:", "accumulate s0.t:", "for i1 < 16:"):
        assert f'mark: "{line}"' in shown
    assert_agrees(graph, entry.kernel)


def test_assumptions_bound_the_domain() -> None:
    graph, entry = copy((N, 4))
    graph.assumptions.append(N - 8)
    kernel = entry.kernel
    tree = loops_of(graph, entry).tree
    assert "n >= 8" in str(to_isl(graph, kernel, tree)) and "n >= 8" not in str(to_isl(None, kernel, tree))


@pytest.mark.parametrize("name", list(KERNELS))
def test_instances_run_in_the_order_of_the_loops(name: str) -> None:
    graph, entry = KERNELS[name]()
    tree = loops_of(graph, entry).tree
    assert_in_order(graph, entry.kernel, tree, {"n": 5})
    random, count = Random(name), 0
    for _ in range(12):
        with suppress(IllegalSchedule, Unsupported):
            assert_in_order(graph, entry.kernel, edited(random, tree), {"n": 5})
            count += 1
    assert count >= 2


def test_a_size_times_a_loop_is_not_affine() -> None:
    graph, entry = copy((6, 7))
    tree = loops_of(graph, entry).tree
    assert isinstance(tree, Loop) and isinstance(tree.body, Loop)
    skewed = replace(tree, body=replace(tree.body, rest=tree.param * N))
    with pytest.raises(Unsupported, match=r"i0\*n is not affine in the loops: a size multiplies one"):
        _there(graph, entry, skewed)


def test_a_bound_that_names_a_loop_inside() -> None:
    graph, entry = copy((6, 7))
    tree = edits.reorder(edits.split(loops_of(graph, entry).tree, "i1", 5), ["i1", "i1_block"])
    with pytest.raises(Unsupported, match="i1_block is no loop around the place that names it"):
        _there(graph, entry, tree)


def test_an_order_that_names_a_loop_twice() -> None:
    graph, entry = copy((6, 7))
    with pytest.raises(IllegalSchedule, match="the order i1, i1 names a loop twice"):
        edits.reorder(loops_of(graph, entry).tree, ["i1", "i1"])

"""Guards in kernels of an accelerator: blocks take different branches, threads that wait for one another the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from daceopt.errors import IllegalSchedule
from daceopt.ir.edits import schedule_edits as edits
from daceopt.ir.edits.attempt import commit
from daceopt.ir.edits.loops import loops_of
from daceopt.ir.schedule import schedule
from daceopt.ir.schedule.conditions import relation
from daceopt.ir.schedule.schedule import Guard, Loop, Tree
from tests.codegen.cuda.emulated import run
from tests.ir.edits.test_schedule_edits import total, two_stages
from tests.ir.guarded import SIZES, expected, neighbours, random_inputs
from tests.numerics import assert_within_rounding


@pytest.mark.parametrize("extents", [(21, 13, 40), SIZES])
@pytest.mark.parametrize("lanes", [False, True])
def test_side_by_side_in_blocks(extents: Any, lanes: bool, tmp_path: Path) -> None:
    """Branches that the blocks of one grid take, each with threads of its own."""
    graph, entry, names = neighbours(extents)
    first, second, third = loops_of(graph, entry).tree.children  # type: ignore[union-attr]
    nests = [
        edits.bind(edits.split(first, "i0", 8), "i0", "block"),
        edits.bind(edits.split(second, "i2", 4), "i2", "block"),
        edits.bind(edits.split(third, "i4", 16), "i4", "warp" if lanes else "block"),
    ]
    if lanes:
        nests[1] = edits.bind(nests[1], "i3", "warp")
    commit(graph, entry, edits.bind(edits.side_by_side(nests), "block", "grid"))
    graph.options = replace(graph.options, target="cuda")
    values = {"m": 21, "n": 13, "k": 40}
    data = random_inputs(graph, values)
    found = run(graph, data, tmp_path, values)
    for name, value in expected(data, names).items():
        assert_within_rounding(found[name], value)


def _behind(tree: Tree, param: str, *condition: Any) -> Tree:
    """A guard around what the loop over ``param`` holds, which always holds."""

    def change(node: Tree) -> Tree:
        if isinstance(node, Loop) and str(node.param) == param:
            return replace(node, body=Guard((relation(node.param, *condition),), node.body))
        return node

    return schedule.map_tree(tree, change)


def test_a_condition_on_threads_that_collect_together_is_refused() -> None:
    graph, entry = total((64, 32))
    tree = edits.bind(edits.bind(loops_of(graph, entry).tree, "i0", "block"), "i1", "warp")
    with pytest.raises(IllegalSchedule, match="on the block loop over i0 parts threads that wait for one another"):
        commit(graph, entry, _behind(edits.split(tree, "i0", 8), "i0", "<", 8))
    commit(graph, entry, _behind(edits.split(tree, "i0", 8), "i0_block", "<", 8))


def test_a_condition_on_threads_that_share_is_refused() -> None:
    graph, entry = two_stages()
    tree = edits.bind(edits.bind(loops_of(graph, entry).tree, "i0", "grid"), "i1", "block")
    shared = schedule.map_tree(tree, lambda n: replace(n, scope="shared") if isinstance(n, schedule.Alloc) else n)
    commit(graph, entry, shared)
    with pytest.raises(IllegalSchedule, match="on the block loop over i1 parts threads that wait for one another"):
        commit(graph, entry, _behind(shared, "i1", "<", 16))

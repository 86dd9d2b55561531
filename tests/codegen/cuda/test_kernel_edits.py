"""Tiles that the threads of a block share: what one thread copies, others read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from daceopt.errors import IllegalSchedule
from daceopt.ir.edits import schedule_edits as edits
from daceopt.ir.edits.attempt import commit
from daceopt.ir.edits.kernel_edits import compute_at, stage_reads
from daceopt.ir.edits.loops import loops_of
from daceopt.ir.kernel.kernel import Kernel
from daceopt.ir.schedule.schedule import Tree
from tests.codegen.cuda.emulated import run
from tests.ir.edits.test_schedule_edits import copy
from tests.ir.guarded import random_inputs
from tests.ir.stencils import blur, blurred
from tests.numerics import assert_within_rounding


def _threads(tree: Tree, kernel: Kernel) -> Tree:
    """The loops that copy into a local run by the threads of a block, too."""
    for local in kernel.locals:
        tree = edits.bind(tree, f"{local}_0", "block")
    return tree


@pytest.mark.parametrize("staged", [False, True])
def test_neighbours_in_shared_memory(staged: bool, tmp_path: Path) -> None:
    graph, entry, names = blur(100)
    loops = loops_of(graph, entry)
    tree = edits.bind(edits.bind(edits.split(loops.tree, "i1", 32), "i1_block", "grid"), "i1", "block")
    kernel = compute_at(graph, loops.on(tree).kernel, 0, "i1_block", "shared")
    if staged:
        kernel = stage_reads(graph, kernel, names["x"], "i1_block", "shared")
    graph.options = replace(graph.options, target="cuda")
    commit(graph, entry, replace(kernel, schedule=_threads(kernel.schedule, kernel)))
    data = random_inputs(graph, {})
    found = run(graph, data, tmp_path)
    assert_within_rounding(found[names["y"]], blurred(data[names["x"]]))


def test_a_tile_that_no_block_can_hold_is_refused() -> None:
    graph, entry = copy((4, 16384))
    loops = loops_of(graph, entry)
    tree = edits.bind(edits.bind(edits.split(loops.tree, "i1", 1024), "i0", "grid"), "i1", "block")
    staged = stage_reads(graph, loops.on(tree).kernel, graph.inputs[0], "i0", "shared")
    graph.options = replace(graph.options, target="cuda")
    with pytest.raises(IllegalSchedule, match="its threads share 65536 bytes; expected at most 49152"):
        commit(graph, entry, staged)

"""Edited kernels, compiled: tiles without their ends, producers inside of their consumers, tiles in locals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from daceopt.codegen.cpu.kernel_source import kernel_source
from daceopt.ir.edits import schedule_edits as edits
from daceopt.ir.edits.attempt import commit
from daceopt.ir.edits.kernel_edits import compute_at, peel, stage_reads, stage_writes
from daceopt.ir.edits.loops import loops_of
from daceopt.ir.graph.graph import Graph
from daceopt.ir.scalar.symbols import size
from daceopt.ir.schedule.schedule import Sequence
from tests.codegen.cpu import kernels
from tests.ir.edits.test_schedule_edits import copy, total
from tests.ir.guarded import random_inputs
from tests.ir.stencils import blur, blurred, flat, plane
from tests.numerics import assert_within_rounding

N = size("n")


def _source(graph: Graph) -> str:
    (entry,) = graph.kernels()
    return kernel_source(graph, entry.kernel).text


def _run(graph: Graph, folder: Path, sizes: dict[str, int] | None = None) -> tuple[dict[str, np.ndarray], np.ndarray]:
    data = random_inputs(graph, sizes or {})
    return data, kernels.run(graph, data, folder, sizes)[graph.outputs[0]]


@pytest.mark.parametrize("rows", [70, N])
def test_whole_tiles_and_the_last_one(rows: Any, tmp_path: Path) -> None:
    graph, entry = copy((rows, 5))
    if rows is N:
        graph.symbols["n"] = (graph.inputs[0], 0)
    loops = loops_of(graph, entry)
    tree = edits.bind(edits.split(loops.tree, "i0", 32), "i0_block", "parallel")
    commit(graph, entry, peel(loops.on(tree).kernel, "i0_block", last=1))
    source = _source(graph)
    assert source.count("dop::minimum<int64_t>(32, ") == 1 and source.count("omp parallel") == 2
    for n in (0, 31, 33, 96) if rows is N else (70,):
        data, found = _run(graph, tmp_path, {"n": n})
        np.testing.assert_array_equal(found, data[graph.inputs[0]] + 1)


@pytest.mark.parametrize("n", [100, N])
def test_a_chain_in_tiles_with_halos(n: Any, tmp_path: Path) -> None:
    graph, entry, names = blur(n, 2)
    loops = loops_of(graph, entry)
    tree = edits.bind(edits.bind(edits.split(loops.tree, "i2", 32), "i2_block", "parallel"), "i2", "vector")
    commit(graph, entry, compute_at(graph, loops.on(tree).kernel, [0, 1], "i2_block"))
    graph.prune()
    assert len(graph.arrays()) == len(graph.inputs) + 1 and _source(graph).count("alignas(64)") == 2
    for extent in (0, 1, 32, 100) if n is N else (100,):
        data, found = _run(graph, tmp_path, {"n": extent})
        assert_within_rounding(found, blurred(data[names["x"]], 2))


def test_sums_in_tiles_of_two_dimensions(tmp_path: Path) -> None:
    graph, entry, names = plane(9, 14)
    loops = loops_of(graph, entry)
    first, second = loops.tree.children  # type: ignore[union-attr]
    tiled = edits.bind(edits.tile(second, {"i3": 4, "i4": 8}), "i3_block", "parallel")
    kernel = loops.on(Sequence((first, tiled))).kernel
    commit(graph, entry, compute_at(graph, kernel, 0, "i4_block"))
    data, found = _run(graph, tmp_path)
    assert_within_rounding(found, flat(data[names["x"]]))


def test_a_tile_that_is_read_and_one_that_is_written(tmp_path: Path) -> None:
    graph, entry = total((20, 30))
    x, y = graph.inputs[0], graph.outputs[0]
    loops = loops_of(graph, entry)
    tree = edits.bind(edits.split(loops.tree, "i0", 8), "i0_block", "parallel")
    entry = commit(graph, entry, stage_reads(graph, loops.on(tree).kernel, x, "i0_block"))
    commit(graph, entry, stage_writes(graph, loops_of(graph, entry).kernel, y, "i0_block"))
    data, found = _run(graph, tmp_path)
    assert_within_rounding(found, data[x].astype(np.float64).sum(1))

"""Tiles with all that they need: boxes, borders, parts, and what is computed twice."""

from __future__ import annotations

from typing import Any

import dace
import pytest
import sympy

from daceopt.errors import IllegalSchedule
from daceopt.ir.fusion.overlapped_tiling import TileLoop, tile
from daceopt.ir.graph.graph import Graph
from daceopt.ir.kernel.kernel import Kernel
from daceopt.ir.scalar.symbols import param
from tests.ir.listings import bias_and_pool, in_one
from tests.transformations.lowered import assert_same, finish, size_symbol, start

N = size_symbol()


def in_tiles(graph: Graph, *walks: dict[int, tuple[int, int]]) -> Kernel:
    """All kernels as one in tiles: for each loop statement -> (its parameter by position, iterations in a tile)."""
    kernel = in_one(graph)
    loops = [
        TileLoop.over(kernel, {k: (kernel.stages[k].params[p], size) for k, (p, size) in w.items()}) for w in walks
    ]
    found = tile(kernel, loops)
    new = graph.copy()
    for node in list(new.nodes()):
        new.remove(node)
    new.add_kernel(found.rename_locals_apart(new))
    new.prune()
    new.validate()
    assert_same(graph, new)
    return found


def stencil(size: Any, offsets: tuple[int, ...] = (0, 1, 2), step: int = 1, kept: bool = False) -> Graph:
    """A map and a stencil behind it."""
    graph, b, (x,) = start((size,))
    y = b.elementwise(lambda v: v + 1, x)
    extent = (size - max(offsets) - 1) // step + 1
    out = graph.add_array("t", (extent,), dace.float32)
    reads = {f"v{k}": (y, lambda i, o=o: (step * i + o,)) for k, o in enumerate(offsets)}
    b.map((extent,), reads, {"o": (out, lambda i: (i,))}, lambda i, **v: sympy.Add(*v.values()))
    return finish(graph, out, *([y] if kept else []))


def test_windows_that_do_not_overlap_compute_nothing_twice() -> None:
    kernel = in_tiles(bias_and_pool(16, 16), {1: (0, 2)})
    assert kernel.extents[param(0)] == 4
    assert [shape for _, shape in kernel.locals.values()] == [(4, 16)]
    assert kernel.extents[kernel.stages[0].params[1]] == 4


def test_two_loops() -> None:
    kernel = in_tiles(bias_and_pool(16, 16), {1: (0, 2)}, {1: (1, 4)})
    assert [shape for _, shape in kernel.locals.values()] == [(4, 8)]


def test_a_stencil_has_a_halo() -> None:
    kernel = in_tiles(stencil(18), {1: (0, 4)})
    assert [shape for _, shape in kernel.locals.values()] == [(6,)]
    assert kernel.extents[param(0)] == 4


@pytest.mark.parametrize("size", [1, 2, 3, 5, 15, 16, 17])
def test_partial_tiles(size: int) -> None:
    """The box of the last tile stays inside of the array."""
    in_tiles(stencil(18), {1: (0, size)})


@pytest.mark.parametrize("offsets", [(0,), (1,), (0, 3), (2, 1, 0)])
@pytest.mark.parametrize("step", [1, 2, 3])
def test_steps_and_gaps(offsets: tuple[int, ...], step: int) -> None:
    in_tiles(stencil(19, offsets, step), {1: (0, 2)})


@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_open_extents(size: int) -> None:
    """Whatever the size is, also where it is smaller than a tile and its halo."""
    in_tiles(stencil(N, (0, 1)), {1: (0, size)})


def test_what_is_read_elsewhere_is_written_once() -> None:
    """A statement of its own writes each element; the halo is computed beside it."""
    kernel = in_tiles(stencil(18, kept=True), {0: (0, 5), 1: (0, 4)})
    writes = [[a.array in kernel.locals for a in s.writes.values()] for s in kernel.stages]
    assert writes == [[True], [False], [False]]


def test_equal_boxes_are_one_statement() -> None:
    kernel = in_tiles(stencil(16, (0, 1), 2, kept=True), {0: (0, 4), 1: (0, 2)})
    assert [len(s.writes) for s in kernel.stages] == [2, 1]


def test_reductions_are_whole() -> None:
    """What a tile needs of a sum it sums as a whole."""
    graph, b, (x,) = start((9, 5))
    y = b.reduce("sum", None, x, axes=(1,))
    finish(graph, b.elementwise(lambda u, v: u - v, b.slice(y, [1], [9], [1], [0]), b.slice(y, [0], [8], [1], [0])))
    kernel = in_tiles(graph, {1: (0, 2)})
    assert [shape for _, shape in kernel.locals.values()] == [(3,)]


def test_reversed_reads() -> None:
    graph, b, (x,) = start((9,))
    y = b.elementwise(lambda v: v + 1, x)
    finish(graph, b.elementwise(lambda v: v * 2, b.slice(y, [8], [-1], [-1], [0])))
    in_tiles(graph, {1: (0, 2)})


def test_a_tile_of_a_reduced_loop_is_refused() -> None:
    graph, b, (x,) = start((9, 5))
    finish(graph, b.reduce("sum", None, b.elementwise(lambda v: v + 1, x), axes=(1,)))
    with pytest.raises(IllegalSchedule, match="reduces over .*, of which a tile would have a part"):
        in_tiles(graph, {1: (1, 2)})


def test_two_loops_over_one_parameter_are_refused() -> None:
    """Each tile of the one would write what all tiles of the other write."""
    with pytest.raises(IllegalSchedule, match="two loops over tiles walk"):
        in_tiles(stencil(18), {1: (0, 2)}, {1: (0, 4)})


def test_a_result_that_walks_no_tile_is_refused() -> None:
    with pytest.raises(IllegalSchedule, match="writes an array and does not walk the tiles"):
        in_tiles(stencil(18, kept=True), {1: (0, 2)})


def test_readers_at_places_without_a_distance_are_refused() -> None:
    graph, b, (x,) = start((10,))
    y = b.elementwise(lambda v: v + 1, x)
    ahead, back = b.slice(y, [0], [10], [1], [0]), b.slice(y, [9], [-1], [-1], [0])
    finish(graph, b.elementwise(lambda u, v: u - v, ahead, back))
    with pytest.raises(IllegalSchedule, match="no fixed distance"):
        in_tiles(graph, {1: (0, 2)})

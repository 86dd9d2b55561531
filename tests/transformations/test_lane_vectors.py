"""Packs of neighbours: what is widened, that numbers stay, and that nvcc moves 16 bytes at once."""

from __future__ import annotations

import random
import subprocess
from math import prod
from pathlib import Path
from typing import Any

import dace
import numpy as np
import pytest

from daceopt.codegen.cuda import toolchain
from daceopt.ir.graph.graph import Graph
from daceopt.ir.interpreter.interpret import interpret
from daceopt.ir.scalar import types
from daceopt.ir.schedule.schedule import loops, schedule_of
from daceopt.passes.runner import Runner
from daceopt.passes.transform import Transformation
from tests.codegen.cuda.emulated import library_of, run, run_once, sources_of
from tests.numerics import assert_within_rounding
from tests.transformations.lowered import BATCH, apply, feeds, finish, size_symbol, start, values
from tests.transformations.test_cuda_kernels import CUDA, _fused_softmax
from tests.transformations.test_cuda_kernels import _random as random_graph

STEP = Transformation.parse("lane-vectors")


def _scheduled(graph: Graph) -> Graph:
    for step in CUDA:
        apply(step, graph)
    return graph


def _elements(shape: tuple[Any, ...], dtype: Any = dace.float32) -> Graph:
    graph, b, (x,) = start(shape, dtype=dtype)
    return finish(graph, b.elementwise(lambda v: v * 3, x, out=graph.add_array("y", shape, dtype)))


def _rows(shape: tuple[int, ...]) -> Graph:
    graph, b, (x,) = start(shape)
    return finish(graph, b.reduce("max", lambda v: v + 1, x, axes=[1]))


def _widths(graph: Graph) -> set[Any]:
    trees = [schedule_of(entry.kernel) for entry in graph.kernels()]
    innermost = [loop for tree in trees for loop in loops(tree) if len(loops(loop)) == 1]
    return {loop.extent for loop in innermost if loop.kind == "unroll"}


def _of_channels(channels: int, pixels: tuple[int, int, int]) -> Graph:
    """An image with its channels innermost, each of which has a factor."""
    graph, b, (x, factor) = start((*pixels, channels), (channels,))
    return finish(graph, b.elementwise(lambda v, f: v * f, x, factor))


@pytest.mark.parametrize(
    ("channels", "pixels", "width"),
    [
        (64, (2, 6, 5), 4),
        (24, (3, 7, 5), 4),  # packs of a pixel that are no power of two
        (4, (2, 9, 8), 4),  # a single pack
        (100, (1, 3, 2), 4),
        (21, (2, 6, 5), None),  # no whole packs: loops are merged nevertheless
        (1, (2, 16, 16), 4),  # pixels are neighbours
    ],
)
def test_short_rows_are_merged_into_blocks(
    channels: int, pixels: tuple[int, int, int], width: int | None, tmp_path: Path
) -> None:
    graph = _scheduled(_of_channels(channels, pixels))
    assert _widths(graph) == ({width} if width else set())
    (entry,) = graph.kernels()
    threads = [n.extent for n in loops(schedule_of(entry.kernel)) if n.kind in ("block", "warp")]
    work = channels * pixels[0] * pixels[1] * pixels[2] // (width or 1)
    assert prod(threads) >= min(work, 128) // 2
    rng = np.random.default_rng(0)
    x, factor = (rng.standard_normal([int(s) for s in graph.shape(n)]).astype(np.float32) for n in graph.inputs)
    found = run(graph, dict(zip(graph.inputs, (x, factor))), tmp_path)
    assert np.array_equal(found[graph.outputs[0]], x * factor)


@pytest.mark.parametrize(
    ("make", "width"),
    [
        (lambda: _elements((4096,)), 4),
        (lambda: _elements((4096,), dace.float64), 2),
        (lambda: _elements((4096,), types.BFLOAT16), 8),
        (lambda: _rows((7, 256)), 4),
        (lambda: _fused_softmax((40, 300)), 4),  # partial tiles of whole packs
        (lambda: _fused_softmax((3, 1400)), 4),  # a row for each block
    ],
)
def test_lanes_run_neighbours(make: Any, width: int, tmp_path: Path) -> None:
    graph = _scheduled(make())
    assert _widths(graph) == {width}
    rng = np.random.default_rng(0)
    inputs = {}
    for name in graph.inputs:
        data = rng.standard_normal([int(s) for s in graph.shape(name)])
        inputs[name] = data.astype(types.to_numpy(graph.dtype(name)))
    found = run(graph, inputs, tmp_path)
    expected = interpret(graph, inputs, dtype=np.float64)
    for name in graph.outputs:
        rounded = interpret(graph, inputs)[name]
        assert_within_rounding(np.asarray(found[name], np.float64), expected[name], rounded, ulps=64)


def _open() -> Graph:
    graph, b, (x,) = start((3, size_symbol()))
    graph.symbols["n"] = (x, 1)
    return finish(graph, b.elementwise(lambda v: v + 1, x))


@pytest.mark.parametrize("make", [lambda: _elements((4098,)), lambda: _elements((64,)), lambda: _columns(), _open])
def test_what_is_no_whole_packs_stays(make: Any) -> None:
    graph = make()
    apply(Transformation.parse("vectorization"), graph)
    before = [n.tree for n in graph.kernels()]
    STEP.run(graph)
    assert [n.tree for n in graph.kernels()] == before


def _columns() -> Graph:
    graph, b, (x,) = start((100, 512))
    return finish(graph, b.reduce("sum", None, x, axes=[0]))


def test_an_access_across_memory_is_a_near_miss() -> None:
    graph, b, (x, y) = start((512, 512), (512, 512))
    finish(graph, b.elementwise(lambda u, v: u + v, x, b.transpose(y, (1, 0))))
    apply(Transformation.parse("vectorization"), graph)
    (miss,) = STEP.run(graph).near_misses
    assert "some of its accesses are apart" in miss


def test_arrays_that_are_not_aligned_are_moved_by_elements(tmp_path: Path) -> None:
    """A tensor may begin anywhere in its storage; the emulation, as a device, takes no wide access there."""
    graph = _scheduled(_elements((4096,)))
    sources = sources_of(graph)
    library = library_of(sources, tmp_path)
    (x,), (y,) = graph.inputs, graph.outputs
    for shift in range(4):
        data = np.random.default_rng(0).standard_normal(4096 + 8).astype(np.float32)
        start_at = (-data.ctypes.data // 4) % 4 + shift
        given = data[start_at : start_at + 4096]
        found = run_once(graph, sources, library, {x: given}, {}, 0)[y]
        np.testing.assert_array_equal(found, given * np.float32(3))


def test_random_graphs(tmp_path: Path) -> None:
    """Views, broadcasts, gathers, reductions, fused, with packs wherever rows are made of them."""
    rng = random.Random(11)
    recipe = CUDA.with_options("lane-vectors", least=1)
    graphs = [graph for _ in range(15) if (graph := random_graph(rng)) is not None]
    expected, packed = [], 0
    for graph in graphs:
        expected.append((values(graph), values(graph, dtype=None)))
        Runner(recipe, "structure").run(graph, levels=("hardware",))
        packed += bool(_widths(graph))
    assert packed > 2
    sources = [sources_of(graph) for graph in graphs]
    library = library_of([source for found in sources for source in found], tmp_path)
    for graph, own, (exact, rounded) in zip(graphs, sources, expected):
        found = run_once(graph, own, library, feeds(graph), {"n": BATCH}, 1)
        for name, wide, theirs in zip(graph.outputs, exact, rounded):
            assert_within_rounding(found[name], wide, theirs, ulps=64)


@pytest.mark.slow
@pytest.mark.skipif(toolchain.nvcc() is None, reason="there is no nvcc")
def test_nvcc_moves_16_bytes_at_once(tmp_path: Path) -> None:
    units = [s.unit for make in (_elements, _fused_softmax) for s in sources_of(_scheduled(make((40, 512))))]
    for k, unit in enumerate(units):
        (tmp_path / "kernel.cu").write_text(unit)
        command = [*toolchain.command(), "-arch=compute_80", "-ptx", "kernel.cu", "-o", "kernel.ptx"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        aligned, others = (tmp_path / "kernel.ptx").read_text().split(".entry ")[1:3]
        assert "ld.global.nc.v4" in aligned and "st.global.wb.v4" in aligned, k
        assert not any(f"global{n}.f32" in aligned for n in ("", ".nc")), "an access of one element is left"
        assert ".v4" not in others.replace("shared.v4", "")

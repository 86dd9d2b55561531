"""The steps that schedule kernels for blocks, warps and lanes, and whole modules through all of them, forward and
backward, whose printed text is executed by the emulation."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sympy
import torch
from torch import nn
from torch.nn import functional

from daceopt import pipeline, recipes
from daceopt.ir.graph.graph import Graph
from daceopt.ir.interpreter.interpret import interpret
from daceopt.ir.schedule.schedule import schedule_of
from daceopt.ir.schedule.schedule_text import text
from daceopt.passes.recipe import Recipe
from daceopt.passes.runner import Runner
from daceopt.passes.transform import Transformation
from daceopt.recipes.cuda_kernels import PLACEMENT, SCHEDULES
from tests.capture.torch.checking import check
from tests.capture.torch.interpreted import compile_interpreted
from tests.codegen.cuda.emulated import library_of, run, run_once, sources_of
from tests.ir.edits.test_schedule_edits import two_stages
from tests.ir.isl_checking import assert_agrees
from tests.numerics import assert_within_rounding
from tests.transformations.lowered import BATCH, SHAPES, RandomGraph, apply, feeds, finish, size_symbol, start, values

CUDA = recipes.get("cuda-kernels")
_CPU = recipes.get("cpu")
_FUSED = [s for s in _CPU.steps if Transformation.parse(str(s)).level != "hardware"]  # what both targets share


def _scheduled(graph: Graph) -> list[str]:
    """The schedules of all kernels after the whole recipe, each step of which keeps the numbers."""
    for step in CUDA:
        apply(step, graph)
    kernels = [entry.kernel for entry in graph.kernels()]
    for kernel in kernels:
        assert_agrees(graph, kernel)
    return ["\n" + text(schedule_of(kernel)).rstrip() for kernel in kernels]


def _reduced(shape: tuple[Any, ...], *axes: int) -> str:
    graph, b, (x,) = start(shape)
    (found,) = _scheduled(finish(graph, b.reduce("sum", None, x, axes=list(axes))))
    return found


def test_threads_run_elements() -> None:
    graph, b, (x,) = start((4096,))
    (found,) = _scheduled(finish(graph, b.elementwise(lambda v: v + 1, x)))
    assert (
        found
        == """
grid for i0_pack_block < 4:
  block for i0_pack_warp < 8:
    warp for i0_pack < 32:
      unroll for i0 < 4:
        s0(i0 + 4*i0_pack + 1024*i0_pack_block + 128*i0_pack_warp)"""
    )


def test_a_warp_runs_a_short_row() -> None:
    assert (
        _reduced((100, 200), 1)
        == """
grid for i0_block < 13:
  block for i0 < 8, 100 - 8*i0_block:
    accumulate warp s0.out0:
      for i1_pack_chunk < 2:
        warp for i1_pack < 32, 50 - 32*i1_pack_chunk:
          accumulate own s0.out0:
            unroll for i1 < 4:
              s0(i0 + 8*i0_block, i1 + 4*i1_pack + 128*i1_pack_chunk)"""
    )


def test_a_block_runs_a_long_row() -> None:
    assert (
        _reduced((10, 3000), 1)
        == """
grid for i0 < 10:
  accumulate block s0.out0:
    for i1_pack_block < 3:
      block for i1_pack_warp < 8:
        warp for i1_pack < 32, -256*i1_pack_block - 32*i1_pack_warp + 750:
          accumulate own s0.out0:
            unroll for i1 < 4:
              s0(i0, i1 + 4*i1_pack + 1024*i1_pack_block + 128*i1_pack_warp)"""
    )
    assert "accumulate block" in _reduced((10, size_symbol()), 1)


def test_lanes_stand_in_columns() -> None:
    assert (
        _reduced((100, 200), 0)
        == """
grid for i1_chunk < 7:
  accumulate block s0.out0:
    for i0_chunk < 13:
      block for i0 < 8, 100 - 8*i0_chunk:
        warp for i1 < 32, 200 - 32*i1_chunk:
          s0(i0 + 8*i0_chunk, i1 + 32*i1_chunk)"""
    )


def test_a_lane_runs_a_reduction_of_a_few_elements() -> None:
    assert "accumulate s0.out0:\n        for i1 < 3:" in _reduced((1000, 3), 1)


def test_rows_that_threads_hold() -> None:
    graph, _ = two_stages()
    (found,) = _scheduled(graph)
    assert "local row in register:" in found  # written and read in one iteration
    *_, found = _scheduled(_fused_softmax((40, 300)))
    assert "in spread:" in found and "accumulate warp" in found


def _fused_softmax(shape: tuple[Any, ...]) -> Graph:
    graph, b, (x,) = start(shape)
    top = b.reduce("max", None, x, axes=[1], keepdims=True)
    e = b.elementwise(lambda v, t: sympy.exp(v - t), x, top)
    total = b.reduce("sum", None, e, axes=[1], keepdims=True)
    finish(graph, b.elementwise(lambda u, v: u / v, e, total))
    Runner(Recipe("fusion", ("map-fusion",))).run(graph)
    return graph


@pytest.mark.parametrize("length", [1 << 14, size_symbol()], ids=str)
def test_rows_that_a_block_cannot_hold_go_through_memory(length: Any) -> None:
    graph, entry = two_stages(backwards=True)
    kernel = entry.kernel
    graph.remove(entry)
    graph.add_kernel(replace(kernel, locals={"row": (kernel.locals["row"][0], (length,))}))
    fission = Transformation.parse("kernel-fission")
    if isinstance(length, int):
        apply(fission, graph)
    else:
        fission.run(graph)
    assert len(graph.kernels()) == 2


def test_a_sum_over_what_statements_share_has_a_kernel_of_its_own() -> None:
    graph, b, (x,) = start((40, 50))
    total = b.reduce("sum", None, x, axes=[1], keepdims=True)
    y = b.elementwise(lambda v, t: v / t, x, total)
    finish(graph, y, b.reduce("sum", lambda u, v: u * v, x, y, axes=[0]))
    Runner(Recipe("fusion", ("map-fusion",))).run(graph)
    before = len(graph.kernels())
    found = _scheduled(graph)
    assert len(found) > before and any("accumulate block" in f for f in found)


@pytest.mark.parametrize("shape", [(0, 3), (3, 0, 4), (3, 4, 0), (0,)])
def test_loops_that_never_run(shape: tuple[int, ...]) -> None:
    graph, b, (x,) = start((0, *sorted(shape)[1:]))
    finish(graph, b.elementwise(lambda v: v + 1, b.reshape(x, shape)))
    for step in CUDA:
        apply(step, graph)
    assert sources_of(graph)  # printers refuse what is no schedule


def test_a_schedule_given_by_hand_is_kept() -> None:
    graph, b, (x,) = start((64, 64))
    finish(graph, b.elementwise(lambda v: v + 1, x))
    for step in ("vectorization", "block-mapping{threads=64}", "warp-tiling"):
        apply(Transformation.parse(step), graph)
    before = [n.tree for n in graph.kernels()]
    apply(Transformation.parse("block-mapping"), graph)
    apply(Transformation.parse("warp-tiling"), graph)
    assert [n.tree for n in graph.kernels()] == before


# ---------------------------------------------------------------- whole modules


def _layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return functional.layer_norm(x, weight.shape, weight, bias)


def _batch_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return functional.batch_norm(x, None, None, weight, bias, training=True)


_MODULES: dict[str, tuple[Any, ...]] = {
    "mish": (nn.Mish, (4, 33, 7)),
    "gelu": (nn.GELU, (300,)),
    "softmax": (lambda: nn.Softmax(-1), (37, 200)),
    "softmax of long rows": (lambda: nn.Softmax(-1), (3, 1700)),
    "softmax of columns": (lambda: nn.Softmax(1), (3, 20, 40)),
    "layer norm": (lambda: _layer_norm, (20, 100), (100,), (100,)),
    "layer norm of long rows": (lambda: _layer_norm, (3, 1300), (1300,), (1300,)),
    "batch norm": (lambda: _batch_norm, (4, 3, 5, 9), (3,), (3,)),
}


class _Emulated:
    """Stands in for ``pipeline.compile_graph``: both directions are printed as CUDA C++ and run in the emulation,
    beside the interpreter in float64, which then gives the caller its results."""

    def __init__(self, folder: Path, schedules: Sequence[str] = SCHEDULES):
        self._folder, self._schedules = folder, schedules
        self.programs = 0

    def __call__(self, fingerprint: str, load: Callable[[], Any], **_: Any) -> Any:
        source = pipeline.source_of(load, Recipe("cuda", (*PLACEMENT, *_FUSED, *self._schedules)))
        for graph, _roles in source.derive().directions():
            self._check(graph)
        return compile_interpreted(fingerprint, load)

    def _check(self, graph: Graph) -> None:
        rng = np.random.default_rng(0)
        inputs = {n: rng.standard_normal([int(s) for s in graph.shape(n)]).astype(np.float32) for n in graph.inputs}
        found = run(graph, inputs, self._folder)
        expected = interpret(graph, inputs, dtype=np.float64)
        for name in (*graph.outputs, *graph.saved):
            assert_within_rounding(found[name], expected[name], ulps=64)
        self.programs += 1


@pytest.mark.parametrize("name", list(_MODULES))
def test_a_module_forward_and_backward(name: str, tmp_path: Path) -> None:
    make, *shapes = _MODULES[name]
    torch.manual_seed(0)
    emulated = _Emulated(tmp_path)
    check(make(), *(torch.randn(shape, requires_grad=True) for shape in shapes), pipeline=emulated)
    assert emulated.programs == 2


@pytest.mark.parametrize("name", list(_MODULES))
def test_a_module_on_a_device_that_wants_many_blocks(name: str, tmp_path: Path) -> None:
    """Small arrays are taken apart and reduced in parts, as large ones are."""
    make, *shapes = _MODULES[name]
    torch.manual_seed(0)
    eager = {"kernel-fission": "kernel-fission{long=2}", "grid-reduction": "grid-reduction{blocks=4096, rows=1}"}
    emulated = _Emulated(tmp_path, [eager.get(step, step) for step in SCHEDULES])
    check(make(), *(torch.randn(shape, requires_grad=True) for shape in shapes), pipeline=emulated)
    assert emulated.programs == 2


def test_every_kernel_is_scheduled_at_any_size(tmp_path: Path) -> None:
    """Softmax and its gradient's sums over rows and columns of open sizes, with partial blocks and with none."""
    n = size_symbol()
    graph, b, (x,) = start((n, 70))
    e = b.elementwise(sympy.exp, x)
    rows = b.reduce("sum", None, e, axes=[1], keepdims=True)
    y = b.elementwise(lambda u, v: u / v, e, rows)
    finish(graph, y, b.reduce("sum", None, y, axes=[0]))
    Runner(Recipe("fusion", (*PLACEMENT, "map-fusion", *SCHEDULES))).run(graph)
    for size in (0, 1, 9):
        data = np.random.default_rng(size).standard_normal((size, 70)).astype(np.float32)
        found = run(graph, {x: data}, tmp_path, {"n": size})
        wide = np.exp(data.astype(np.float64))
        wide /= wide.sum(1, keepdims=True)
        assert_within_rounding(found[graph.outputs[0]], wide)
        assert_within_rounding(found[graph.outputs[1]], wide.sum(0))


def _random(rng: random.Random) -> Graph | None:
    """A graph of kernels alone, which map fusion has been through."""
    shapes = [rng.choice(SHAPES) for _ in range(rng.randint(1, 3))]
    steps = [tuple(rng.randint(0, 10) for _ in range(4)) for _ in range(rng.randint(3, 10))]
    graph = RandomGraph(shapes, steps).graph  # type: ignore[arg-type]
    if not graph.outputs or len(graph.kernels()) != len(graph.nodes()):
        return None
    Runner(Recipe("fusion", ("tasklet-fusion", "map-fusion", "reduction-lowering"))).run(graph)
    return graph


def test_random_graphs(tmp_path: Path) -> None:
    """Views, broadcasts, gathers, random numbers, reductions and sizes that change, fused: in one library."""
    rng = random.Random(7)
    graphs = [graph for _ in range(12) if (graph := _random(rng)) is not None]
    assert len(graphs) > 8
    expected = []
    for graph in graphs:
        expected.append((values(graph), values(graph, dtype=None)))
        Runner(CUDA, "structure").run(graph)
    sources = [sources_of(graph) for graph in graphs]
    library = library_of([source for found in sources for source in found], tmp_path)
    for graph, own, (exact, rounded) in zip(graphs, sources, expected):
        for order in (0, 1):
            found = run_once(graph, own, library, feeds(graph), {"n": BATCH}, order)
            for name, wide, theirs in zip(graph.outputs, exact, rounded):
                assert_within_rounding(found[name], wide, theirs, ulps=64)

"""Rows that threads hold in registers: what is read once, what keeps its schedule, and numbers at odd lengths."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sympy
import torch
from torch import nn
from torch.nn import functional

from daceopt import pipeline, recipes
from daceopt.codegen.cuda import toolchain
from daceopt.codegen.cuda.kernel_source import kernel_source
from daceopt.errors import IllegalSchedule
from daceopt.ir.edits.schedule_edits import rescope
from daceopt.ir.graph.graph import Graph
from daceopt.ir.interpreter.interpret import interpret
from daceopt.ir.legality.schedule_check import check as check_schedule
from daceopt.ir.scalar import types
from daceopt.ir.schedule.schedule import Alloc, loops, schedule_of, walk
from daceopt.passes.recipe import Recipe
from daceopt.passes.runner import Runner
from daceopt.passes.transform import Transformation
from daceopt.recipes.cuda_kernels import PLACEMENT, SCHEDULES
from tests.capture.torch.checking import check
from tests.capture.torch.interpreted import compile_interpreted
from tests.codegen.cuda.emulated import run
from tests.ir.edits.test_schedule_edits import two_stages
from tests.numerics import assert_within_rounding
from tests.transformations.lowered import apply, finish, size_symbol, start

_FUSED = [s for s in recipes.get("cpu").steps if Transformation.parse(str(s)).level != "hardware"]


class _Kept:
    """Stands in for ``pipeline.compile_graph`` and keeps the scheduled graphs of both directions."""

    def __init__(self) -> None:
        self.graphs: list[Graph] = []

    def __call__(self, fingerprint: str, load: Callable[[], Any], **_: Any) -> Any:
        source = pipeline.source_of(load, Recipe("cuda", (*PLACEMENT, *_FUSED, *SCHEDULES)))
        self.graphs += [graph for graph, _roles in source.derive().directions()]
        return compile_interpreted(fingerprint, load)


def _graphs(module: Callable[..., Any], *shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[Graph]:
    kept = _Kept()
    torch.manual_seed(0)
    check(module, *(torch.randn(shape).to(dtype).requires_grad_() for shape in shapes), pipeline=kept)
    return kept.graphs


def _layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return functional.layer_norm(x, weight.shape, weight, bias)


def _norms(rows: int, length: int, dtype: torch.dtype = torch.float32) -> list[Graph]:
    return _graphs(_layer_norm, (rows, length), (length,), (length,), dtype=dtype)


def _scopes(graph: Graph) -> list[str]:
    kernels = (entry.kernel for entry in graph.kernels())
    return [n.scope for kernel in kernels for n, _ in walk(schedule_of(kernel)) if isinstance(n, Alloc)]


def _assert_right(graph: Graph, folder: Path, ulps: int = 64) -> None:
    """The text of all kernels, executed with threads in three orders, beside the interpreter in float64."""
    rng = np.random.default_rng(1)
    inputs = {}
    for name in graph.inputs:
        drawn = rng.standard_normal([int(s) for s in graph.shape(name)]).astype(np.float32)
        inputs[name] = drawn.astype(types.to_numpy(graph.dtype(name)))
    found, expected = run(graph, inputs, folder), interpret(graph, inputs, dtype=np.float64)
    for name in (*graph.outputs, *graph.saved):
        assert_within_rounding(found[name], expected[name], ulps=ulps)


# ---------------------------------------------------------------- how often memory is read


def _loads(text: str, pointer: str) -> int:
    """Elements of an array that a thread loads: loads of packs, or of elements."""
    return len(re.findall(rf"load_pack<ALIGN, \d+>\({pointer} \+|\b{pointer}\[[^]]*\](?! =)", text))


def _reads_of_rows(graph: Graph, columns: int) -> list[int]:
    """How often the text of a kernel that writes rows of ``columns`` elements loads each array of them."""
    found = []
    for entry in graph.kernels():
        kernel = entry.kernel
        if not any(len(graph.shape(access.array)) == 2 for access in kernel.writes()):
            continue
        source = kernel_source(graph, kernel)
        text = source.text[: source.text.index('extern "C"')]
        for k, argument in enumerate(a for a in source.arguments if a.kind == "pointer"):
            if tuple(graph.shape(argument.array))[-1:] == (columns,) and len(graph.shape(argument.array)) == 2:
                found.append(_loads(text, f"p{k}"))
    return found


@pytest.mark.parametrize("columns", [96, 1024, 2048])
def test_a_layer_norm_reads_its_rows_once(columns: int) -> None:
    forward, backward = _norms(16, columns)
    assert _reads_of_rows(forward, columns) == [1, 0]  # what is normalized, and what is written
    assert _reads_of_rows(backward, columns) == [1, 1, 0]
    assert "shared" not in _scopes(forward) + _scopes(backward)


def test_a_softmax_keeps_its_exponentials() -> None:
    forward, _ = _graphs(nn.Softmax(-1), (16, 2048))
    (columns,) = {int(graph_shape[-1]) for graph_shape in (forward.shape(n) for n in forward.inputs)}
    assert _reads_of_rows(forward, columns) == [1, 0]
    assert "spread" in _scopes(forward) and "shared" not in _scopes(forward)


def test_a_warp_needs_no_barrier() -> None:
    forward, _ = _norms(16, 1024)
    (entry,) = forward.kernels()
    assert "__syncthreads" not in kernel_source(forward, entry.kernel).text


# ---------------------------------------------------------------- numbers


@pytest.mark.parametrize("columns", [1, 31, 33, 1000, 1023, 1024, 1025, 4097])
def test_rows_of_any_length(columns: int, tmp_path: Path) -> None:
    for graph in _norms(3 if columns > 1024 else 11, columns):
        _assert_right(graph, tmp_path)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_rows_of_other_types(dtype: torch.dtype, tmp_path: Path) -> None:
    for columns in (72, 1280):
        forward, backward = _norms(9, columns, dtype)
        _assert_right(forward, tmp_path)
        assert "spread" in _scopes(forward) and "spread" in _scopes(backward)


@pytest.mark.parametrize("columns", [40, 1500])
def test_softmax_of_any_length(columns: int, tmp_path: Path) -> None:
    for graph in _graphs(nn.Softmax(-1), (9, columns)):
        _assert_right(graph, tmp_path)


# ---------------------------------------------------------------- what keeps its schedule


def _softmax(shape: tuple[Any, ...], steps: tuple[str, ...] = SCHEDULES) -> Graph:
    graph, b, (x,) = start(shape)
    top = b.reduce("max", None, x, axes=[1], keepdims=True)
    e = b.elementwise(lambda v, t: sympy.exp(v - t), x, top)
    total = b.reduce("sum", None, e, axes=[1], keepdims=True)
    finish(graph, b.elementwise(lambda u, v: u / v, e, total))
    Runner(Recipe("fusion", (*PLACEMENT, "map-fusion"))).run(graph)
    for step in steps:
        apply(Transformation.parse(step), graph)
    return graph


@pytest.mark.parametrize("shape", [(3, 1 << 16), (3, size_symbol())], ids=str)
def test_rows_that_registers_do_not_hold(shape: tuple[Any, ...]) -> None:
    assert "spread" not in _scopes(_softmax(shape))


def test_as_many_registers_as_are_given() -> None:
    few = tuple("row-holding{registers=7}" if step == "row-holding" else step for step in SCHEDULES)
    assert "shared" in _scopes(_softmax((3, 2048), few))
    some = tuple("row-holding{registers=8}" if step == "row-holding" else step for step in SCHEDULES)
    found = _scopes(_softmax((3, 2048), some))  # the exponentials, not what they are of as well
    assert found.count("spread") == 1 and "shared" not in found


def test_the_loops_are_unrolled() -> None:
    graph = _softmax((3, 2048))
    *_, entry = graph.kernels()
    kinds = [loop.kind for loop in loops(schedule_of(entry.kernel))]
    assert "serial" not in kinds and "unroll" in kinds


def test_a_row_that_is_read_backwards_stays_in_shared_memory(tmp_path: Path) -> None:
    graph, _ = two_stages(backwards=True)
    Runner(Recipe("schedules", (*PLACEMENT, *SCHEDULES))).run(graph)
    _assert_right(graph, tmp_path)
    (entry,) = graph.kernels()
    kernel = entry.kernel
    assert _scopes(graph) == ["shared"]
    (name,) = kernel.locals
    with pytest.raises(IllegalSchedule, match=f"the local {name} is accessed by other threads"):
        check_schedule(graph, kernel, rescope(schedule_of(kernel), name, "spread"))


def test_without_threads_nothing_is_spread() -> None:
    graph = _softmax((3, 200), ())
    (entry, *_) = [e for e in graph.kernels() if e.kernel.locals]
    kernel = entry.kernel
    name = next(iter(kernel.locals))
    with pytest.raises(IllegalSchedule, match=f"{name} is spread, but there are no threads"):
        check_schedule(graph, kernel, rescope(schedule_of(kernel), name, "spread"))


# ---------------------------------------------------------------- nvcc


@pytest.mark.slow
@pytest.mark.skipif(toolchain.nvcc() is None, reason="there is no nvcc")
def test_nvcc_keeps_rows_in_registers(tmp_path: Path) -> None:
    """Neither stacks nor a second load: 8 packs of the row, of the scale and of the shift."""
    forward, _ = _norms(16, 1024)
    (entry,) = forward.kernels()
    (tmp_path / "k.cu").write_text(kernel_source(forward, entry.kernel).unit)
    command = [toolchain.require_nvcc(), *toolchain._FLAGS, "-arch=compute_80", "-ptx", "k.cu", "-o", "k.ptx"]
    subprocess.run(command, cwd=tmp_path, check=True)
    text = (tmp_path / "k.ptx").read_text()
    packed = next(part for part in text.split(".entry")[1:] if "ILi16E" in part.split("(")[0])
    assert len(re.findall(r"ld\.global\S*\.v4", packed)) == 24 and "__local_depot" not in packed

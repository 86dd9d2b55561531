"""Targets: what each owns, and a whole program for cuda, from graph to call, emulated and compiled by nvcc."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import dace
import numpy as np
import pytest
import sympy
import torch
from torch import nn

from daceopt import libs, optimized_module, recipes
from daceopt.codegen import build, target, toolchain
from daceopt.codegen.assemble import load_program
from daceopt.codegen.compiler import CompileJob, compile_objects
from daceopt.codegen.cuda.toolchain import has_device, link, nvcc
from daceopt.errors import BuildError, DaceoptError, EarlierCallFailed, RunError, Unsupported
from daceopt.ir.graph.graph import Graph
from daceopt.ir.interpreter.interpret import interpret
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.scalar import scalar
from daceopt.passes.recipe import Recipe
from daceopt.passes.runner import Runner
from daceopt.runtime.executable import Executable
from daceopt.runtime.manifest import Manifest
from daceopt.transformations.coarse.device_placement import DevicePlacement
from tests.codegen.cuda import emulated_target
from tests.numerics import assert_within_rounding
from tests.transformations.lowered import feeds, finish, start

STREAM = 0x5EA
needs_nvcc = pytest.mark.skipif(nvcc() is None, reason="there is no nvcc")
needs_device = pytest.mark.skipif(nvcc() is None or not has_device(), reason="there is no CUDA device")


def _softmax() -> Graph:
    graph, b, (x,) = start((50, 200))
    e = b.elementwise(sympy.exp, x)
    total = b.reduce("sum", None, e, axes=(1,), keepdims=True)
    return finish(graph, b.elementwise(lambda u, v: u / v, e, total))


def _for_cuda(graph: Graph, verify: str | None = "numerics") -> Graph:
    Runner(recipes.get("cuda-kernels"), verify).run(graph)
    return graph


def _built(graph: Graph, name: str) -> Executable:
    roles = {n: f"input:{k}" for k, n in enumerate(graph.inputs)}
    roles |= {n: f"output:{k}" for k, n in enumerate(graph.outputs)}
    (key,) = build.build(f"test_target {name}", [(graph, roles)], libs.implement)
    found = load_program(key)
    assert found is not None
    return found


def _run(executable: Executable, graph: Graph) -> tuple[np.ndarray, np.ndarray]:
    """The program's result on memory of the host, and the reference."""
    (x,), (y,) = graph.inputs, graph.outputs
    data = feeds(graph)
    result = np.full(tuple(map(int, graph.shape(y))), np.nan, np.float32)
    arena = np.full(executable.sizes().arena, 0xFF, np.uint8)
    executable.run([data[x].ctypes.data, result.ctypes.data, 0, arena.ctypes.data, 0, STREAM])
    return result, interpret(graph, data, dtype=np.float64)[y]


def test_each_target_has_a_recipe_of_steps_that_schedule() -> None:
    assert target.names() == ["cpu", "cuda"]
    for name in target.names():
        levels = {step.level for step in recipes.get(target.get(name).recipe)}
        assert "hardware" in levels
        assert target.get(name).toolchain is toolchain.get(name)
    with pytest.raises(Unsupported, match="no target is called 'tpu'; there are: cpu, cuda"):
        target.get("tpu")
    with pytest.raises(BuildError, match="no compiler is known for the target 'tpu'"):
        toolchain.get("tpu")


def test_arrays_live_on_the_target_of_their_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    emulated_target.install(monkeypatch)
    graph = _for_cuda(_softmax())
    assert graph.options.target == "cuda" and graph.copy().options.target == "cuda"
    manifest = _built(graph, "devices").manifest
    assert {t.device for t in (*manifest.inputs, *manifest.outputs)} == {"cuda"}
    assert manifest.has_stream and manifest.pointer_count == 2 + 3 + 1
    assert Manifest.from_json(manifest.to_json()) == manifest
    plain = _built(_softmax(), "host").manifest
    assert {t.device for t in (*plain.inputs, *plain.outputs)} == {"cpu"}
    assert not plain.has_stream and plain.pointer_count == 2 + 3


def test_a_whole_program_runs_on_the_stream_of_its_call(monkeypatch: pytest.MonkeyPatch) -> None:
    emulated_target.install(monkeypatch)
    graph = _for_cuda(_softmax())
    executable = _built(graph, "emulated")
    result, expected = _run(executable, graph)
    assert_within_rounding(result, expected)
    library = ctypes.CDLL(str(executable.entry / "program.so"))
    library.emulation_stream.restype = ctypes.c_void_p
    assert library.emulation_stream() == STREAM
    assert "(kernel_stream, " in executable.source()


@needs_nvcc
def test_nvcc_builds_it_and_says_where_it_cannot_run() -> None:
    graph = _for_cuda(_softmax())
    executable = _built(graph, "nvcc")
    if has_device():
        return
    with pytest.raises(RunError, match="a kernel did not start"):
        _run(executable, graph)


def _columns() -> Graph:
    graph, b, (x,) = start((700, 90))
    return finish(graph, b.reduce("max", lambda v: v * 2, x, axes=(0,)))


def _rows() -> Graph:
    graph, b, (x,) = start((7, 3000))
    top = b.reduce("max", None, x, axes=(1,), keepdims=True)
    graph = finish(graph, b.elementwise(lambda v, m: sympy.tanh(v - m), x, top))
    Runner(Recipe("fusion", ("map-fusion",))).run(graph)
    return graph


@pytest.mark.gpu
@needs_device
@pytest.mark.parametrize("build", [_softmax, _columns, _rows])
def test_a_whole_program_runs_on_a_device(build: Callable[[], Graph]) -> None:
    graph = _for_cuda(build())
    executable = _built(graph, f"device {build.__name__}")
    (x,), (y,) = graph.inputs, graph.outputs
    data = feeds(graph)
    result = np.zeros(tuple(map(int, graph.shape(y))), np.float32)
    runtime = _runtime()
    memory = [_allocated(runtime, n) for n in (data[x].nbytes, result.nbytes, executable.sizes().arena)]
    runtime.cudaMemcpy(memory[0], ctypes.c_void_p(data[x].ctypes.data), ctypes.c_size_t(data[x].nbytes), 1)
    executable.run([memory[0].value or 0, memory[1].value or 0, 0, memory[2].value or 0, 0, 0])
    back = ctypes.c_void_p(result.ctypes.data), memory[1], ctypes.c_size_t(result.nbytes), 2
    assert runtime.cudaMemcpy(*back) == 0
    assert_within_rounding(result, interpret(graph, data, dtype=np.float64)[y])


def _runtime() -> ctypes.CDLL:
    folders = [Path(flag.removeprefix("-L")) for flag in link() if flag.startswith("-L")]
    return ctypes.CDLL(str(next(f / "libcudart.so" for f in folders if (f / "libcudart.so").exists())))


def _allocated(runtime: ctypes.CDLL, size: int) -> ctypes.c_void_p:
    found = ctypes.c_void_p()
    assert runtime.cudaMalloc(ctypes.byref(found), ctypes.c_size_t(max(size, 1))) == 0
    return found


@needs_nvcc
def test_what_nvcc_rejects_is_reported_with_its_messages() -> None:
    with pytest.raises(BuildError, match=r"(?s)rejected kernel broken.*undefined"):
        compile_objects([CompileJob("void f() { nothing(); }", "kernel", label="broken", target="cuda")])


# ---------------------------------------------------------------- what is refused


def _refused(graph: Graph, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    emulated_target.install(monkeypatch)
    with pytest.raises(Unsupported, match=reason):
        _built(_for_cuda(graph), reason)


def test_a_product_of_integers_has_no_library_there(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, b, (x, w) = start((8, 16), (16, 4), dtype=dace.int32)
    product = finish(graph, b.matmul(x, w))
    _refused(product, "it works on arrays of cpu; these live on cuda.*torch_device: element types", monkeypatch)


def test_a_wrong_index_is_told_by_the_next_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host reads what kernels report before it starts them, and waits for none."""
    emulated_target.install(monkeypatch)
    graph = Graph("gather")
    table, ids = graph.add_input("table", (10, 16), dace.float32), graph.add_input("ids", (5,), dace.int64)
    out = graph.add_array("out", (5, 16), dace.float32)
    reads: dict[str, Any] = {"t": (table, lambda i, j: (None, None)), "k": (ids, lambda i, j: (i,))}
    load = lambda params, t, k: scalar.load(t, k, params[1])  # noqa: E731
    Builder(graph).map((5, 16), reads, {"o": (out, lambda i, j: (i, j))}, load)
    graph.add_output(out)
    executable = _built(_for_cuda(graph, None), "gather")
    rows, found = np.arange(160, dtype=np.float32).reshape(10, 16), np.zeros((5, 16), np.float32)
    at = np.array([0, 9, 3, 1, 5])
    for index, error in ((at, None), (at + 1, None), (at, "an earlier call: an index is out of range"), (at, None)):
        call = [rows.ctypes.data, index.ctypes.data, found.ctypes.data, 0, 0, 0, STREAM]
        if error is None:
            executable.run(call)
            continue
        with pytest.raises(EarlierCallFailed, match=error):
            executable.run(call)
    np.testing.assert_array_equal(found, rows[at])


def test_a_schedule_for_the_other_target_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    emulated_target.install(monkeypatch)
    graph = _softmax()
    graph.options = replace(graph.options, target="cuda")
    with pytest.raises(Unsupported, match="no loop of its schedule runs on blocks or lanes"):
        _built(graph, "unscheduled")
    graph = _for_cuda(_softmax())
    graph.options = replace(graph.options, target="cpu")
    with pytest.raises(Unsupported, match="a grid loop"):
        _built(graph, "of blocks")


def test_a_call_of_a_module_does_not_reach_a_device() -> None:
    net = optimized_module(nn.Tanh(), recipe=recipes.get("cpu") + DevicePlacement("cuda"), fallback="raise")
    with pytest.raises(DaceoptError, match="a program for cuda: its arrays live on cuda, those of this call on cpu"):
        net(torch.ones(8))

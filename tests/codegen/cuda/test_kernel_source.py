"""Printed CUDA C++, executed on the host by an emulation of every thread (emulation.h), against NumPy in float64."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import dace
import numpy as np
import pytest
import sympy

from daceopt import recipes
from daceopt.errors import Unsupported
from daceopt.ir.edits import schedule_edits as edits
from daceopt.ir.edits.attempt import commit
from daceopt.ir.edits.loops import loops_of
from daceopt.ir.graph.graph import Graph
from daceopt.ir.interpreter.interpret import interpret
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.scalar import philox, scalar, types
from daceopt.ir.schedule import schedule
from daceopt.ir.schedule.schedule import Alloc
from daceopt.ir.schedule.schedule_text import parse
from daceopt.passes.runner import Runner
from tests.codegen.cpu.kernels import STREAM, IndexOutOfRange
from tests.codegen.cuda.emulated import EmulationError, library_of, run, run_once, sources_of
from tests.ir.edits.test_schedule_edits import two_stages
from tests.numerics import assert_within_rounding

F = dace.float32
N = dace.symbolic.symbol("n", dace.int64)
RNG = np.random.default_rng(0)


def _data(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def _new(*shapes: tuple[Any, ...], dtype: Any = F) -> tuple[Graph, Builder, list[str]]:
    graph = Graph("test")
    return graph, Builder(graph), [graph.add_input(f"x{k}", s, dtype) for k, s in enumerate(shapes)]


def _scheduled(graph: Graph, *outputs: str) -> Graph:
    for name in outputs:
        graph.add_output(name)
    Runner(recipes.get("cuda-kernels")).run(graph)
    return graph


@pytest.mark.parametrize("shape", [(), (1,), (33,), (3, 5), (8, 33, 65), (0, 4), (2, 1500)])
def test_elementwise(shape: tuple[int, ...], tmp_path: Path) -> None:
    graph, b, (x,) = _new(shape)
    y = b.elementwise(lambda v: v * sympy.tanh(scalar.softplus(v)), x)
    data = _data(*shape)
    wide = data.astype(np.float64)
    result = run(_scheduled(graph, y), {x: data}, tmp_path)
    assert_within_rounding(result[y], wide * np.tanh(np.logaddexp(wide, 0)))


def test_loops_of_few_iterations_are_merged_for_the_lanes(tmp_path: Path) -> None:
    graph, b, (x, s) = _new((70, 5, 3), (5, 1))
    y = b.elementwise(lambda v, w: v + w, b.transpose(x, (0, 2, 1)), b.reshape(s, (5,)))
    data, bias = _data(70, 5, 3), _data(5, 1)
    result = run(_scheduled(graph, y), {x: data, s: bias}, tmp_path)
    np.testing.assert_array_equal(result[y], data.transpose(0, 2, 1) + bias[:, 0])
    assert "% INT64_C(" in sources_of(graph)[0].text or "dop::pymod" in sources_of(graph)[0].text


_REDUCTIONS = [
    ((5, 700), (1,)),
    ((40, 100), (1,)),
    ((3, 2600), (1,)),
    ((700, 40), (0,)),
    ((9, 33), (0,)),
    ((50, 6, 70), (0, 2)),
    ((30, 40, 3), (2,)),
    ((2, 3, 4, 5), (1, 3)),
    ((2000,), (0,)),
    ((60, 20), (0, 1)),
    ((4, 0), (1,)),
    ((0, 4), (0,)),
    ((0, 4), (1,)),
    ((3, 1), (1,)),
]


@pytest.mark.parametrize("kind", ["sum", "max", "min", "prod"])
def test_reduction(kind: str, tmp_path: Path) -> None:
    """All shapes in one library: rows by a warp or a block, columns, everything, nothing."""
    graph, b, names = _new(*(shape for shape, _ in _REDUCTIONS))
    results = [b.reduce(kind, lambda v: v * 2, x, axes=axes) for x, (_, axes) in zip(names, _REDUCTIONS)]
    inputs = {}
    for x, (shape, _) in zip(names, _REDUCTIONS):
        data = _data(*shape)
        if kind == "prod":  # signs and a few factors of 3: exact
            data = np.where(data > 0, 0.5, -0.5).astype(np.float32)
            data.reshape(-1)[:: max(data.size // 9, 1)] = 1.5
        inputs[x] = data
    found = run(_scheduled(graph, *results), inputs, tmp_path)
    start = {"max": {"initial": -np.inf}, "min": {"initial": np.inf}}.get(kind, {})
    for x, y, (_, axes) in zip(names, results, _REDUCTIONS):
        expected = getattr(np, kind)(inputs[x].astype(np.float64) * 2, axis=axes, **start)
        assert_within_rounding(found[y], expected)


@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)])
def test_maximum_propagates_nan_from_every_lane(axes: tuple[int, ...], tmp_path: Path) -> None:
    graph, b, (x,) = _new((60, 70))
    high, low = (b.reduce(kind, None, x, axes=axes) for kind in ("max", "min"))
    data = _data(60, 70)
    data[11, 13], data[5, 6], data[5, 69] = np.nan, np.inf, -np.inf
    result = run(_scheduled(graph, high, low), {x: data}, tmp_path)
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(result[high], np.max(data, axis=axes))
        np.testing.assert_array_equal(result[low], np.min(data, axis=axes))


@pytest.mark.parametrize("dtype", [dace.int8, dace.int64, dace.uint16, dace.bool_])
def test_integers_and_booleans_across_lanes(dtype: Any, tmp_path: Path) -> None:
    graph, b, (x,) = _new((20, 90), dtype=dtype)
    top = b.reduce("max", None, x, axes=(1,))
    total = b.reduce("sum", None, x, axes=(0,), dtype=dace.int64)
    kind = types.to_numpy(dtype)
    data = RNG.integers(0 if kind.kind in "ub" else -40, 2 if kind.kind == "b" else 80, (20, 90)).astype(kind)
    result = run(_scheduled(graph, top, total), {x: data}, tmp_path)
    np.testing.assert_array_equal(result[top], data.max(1))
    np.testing.assert_array_equal(result[total], data.astype(np.int64).sum(0))


def test_symbolic_sizes_with_partial_blocks_and_without_any(tmp_path: Path) -> None:
    graph, b, (x,) = _new((N, 40))
    graph.symbols["n"] = (x, 0)
    y = b.elementwise(lambda v: v + 1, x)
    rows, columns = b.reduce("sum", None, y, axes=(1,)), b.reduce("sum", None, y, axes=(0,))
    _scheduled(graph, y, rows, columns)
    for extent in (0, 1, 7, 77):
        data = _data(extent, 40)
        result = run(graph, {x: data}, tmp_path, {"n": extent})
        wide = data.astype(np.float64) + 1
        assert_within_rounding(result[rows], wide.sum(1))
        assert_within_rounding(result[columns], wide.sum(0))


@pytest.mark.parametrize("extent", [0, 1, 31, 257, 1100])
def test_rows_of_unknown_length(extent: int, tmp_path: Path) -> None:
    graph, b, (x,) = _new((3, N))
    graph.symbols["n"] = (x, 1)
    total = b.reduce("sum", None, x, axes=(1,))
    data = _data(3, extent)
    result = run(_scheduled(graph, total), {x: data}, tmp_path, {"n": extent})
    assert_within_rounding(result[total], data.astype(np.float64).sum(1))


@pytest.mark.parametrize("dtype", types.NARROW, ids=types.name_of)
def test_narrow_types(dtype: Any, tmp_path: Path) -> None:
    graph, b, (x,) = _new((5, 40), dtype=dtype)
    y = b.elementwise(lambda v: v * 2 + 1, x)
    top = b.reduce("max", None, y, axes=(1,))
    kind = types.to_numpy(dtype)
    data = RNG.integers(0, 2, (5, 40)).astype(np.float32).astype(kind)
    expected = interpret(_scheduled(graph, y, top), {x: data})
    result = run(graph, {x: data}, tmp_path)
    for name in (y, top):
        np.testing.assert_array_equal(result[name].astype(np.float64), expected[name].astype(np.float64))


def test_a_gather_and_its_bad_index(tmp_path: Path) -> None:
    graph = Graph("gather")
    b = Builder(graph)
    table, ids = graph.add_input("table", (10, 16), F), graph.add_input("ids", (5,), dace.int64)
    out = graph.add_array("out", (5, 16), F)
    reads = {"t": (table, lambda i, j: (None, j)), "k": (ids, lambda i, j: (i,))}
    b.map((5, 16), reads, {"o": (out, lambda i, j: (i, j))}, lambda params, t, k: scalar.load(t, k))
    _scheduled(graph, out)
    data, index = _data(10, 16), np.array([3, 9, 0, 1, 3])
    np.testing.assert_array_equal(run(graph, {table: data, ids: index}, tmp_path)[out], data[index])
    for bad in (10, -1):
        with pytest.raises(IndexOutOfRange):
            run(graph, {table: data, ids: np.array([0, 1, bad, 2, 3])}, tmp_path)


def test_random_numbers_are_those_of_numpy(tmp_path: Path) -> None:
    graph = Graph("dropout")
    b = Builder(graph)
    out, seed = graph.add_array("out", (4, 100), F), graph.seed()
    reads = {"s": (seed, lambda i, j: (0,))}
    draw = lambda params, s: scalar.uniform(s, 7, params[0] * 100 + params[1])  # noqa: E731
    b.map((4, 100), reads, {"o": (out, lambda i, j: (i, j))}, draw)
    result = run(_scheduled(graph, out), {"rng_seed": np.array([-12345], np.int64)}, tmp_path)[out]
    np.testing.assert_array_equal(result, philox.uniform(-12345, 7, np.arange(400).reshape(4, 100)))


# ---------------------------------------------------------------- schedules by hand


def _by_hand(graph: Graph, edit: Any) -> Graph:
    (entry,) = graph.kernels()
    commit(graph, entry, edit(loops_of(graph, entry).tree))
    return graph


def test_a_collective_operation_in_a_loop_is_added_once(tmp_path: Path) -> None:
    """Each round of lanes starts from the identity: what was collected before is not added by every lane again."""
    graph, b, (x,) = _new((3, 100))
    y = b.reduce("sum", None, x, axes=(1,))
    graph.add_output(y)
    lines = [
        "grid for i0 < 3:",
        "  accumulate s0.out0:",
        "    for i1_chunk < 4:",
        "      accumulate warp s0.out0:",
        "        warp for i1 < 32, 100 - 32*i1_chunk:",
        "          s0(i0, i1 + 32*i1_chunk)",
    ]
    (node,) = graph.kernels()[:1]
    node.kernel = replace(node.kernel, schedule=parse("\n".join(lines)))
    data = np.ones((3, 100), np.float32) * np.array([[1], [2], [3]], np.float32)
    np.testing.assert_array_equal(run(graph, {x: data}, tmp_path)[y], [100, 200, 300])


@pytest.mark.parametrize("groups", [1, 3])
def test_lanes_exchange_a_row_in_shared_memory(groups: int, tmp_path: Path) -> None:
    """The second loop reads a row backwards, from other lanes than have written it, one row for each warp."""
    graph, _ = two_stages(backwards=True)

    def edit(tree: Any) -> Any:
        tree = edits.bind(tree, "i1", "warp")
        if groups > 1:
            tree = edits.bind(edits.bind(edits.split(tree, "i0", groups), "i0_block", "grid"), "i0", "block")
        else:
            tree = edits.bind(tree, "i0", "grid")
        return schedule.map_tree(tree, lambda n: replace(n, scope="shared") if isinstance(n, Alloc) else n)

    _by_hand(graph, edit)
    (source,) = sources_of(graph)
    assert ("__syncwarp();" if groups > 1 else "__syncthreads();") in source.text
    data = _data(8, 16)
    result = run(graph, {graph.inputs[0]: data}, tmp_path)[graph.outputs[0]]
    assert_within_rounding(result, np.exp(data.astype(np.float64))[:, ::-1] + 1)


def _block_for_each_row(tree: Any) -> Any:
    tree = edits.split(edits.split(tree, "i1", 256, "chunk"), "i1", 32, "warp")
    for param, kind in {"i0": "grid", "i1_warp": "block", "i1": "warp"}.items():
        tree = edits.bind(tree, param, kind)
    return tree


def test_without_its_barrier_the_emulation_finds_a_race(tmp_path: Path) -> None:
    """What the emulation is worth: a text that lacks a barrier gives another result in another order of threads."""
    graph, b, (x,) = _new((2, 600))
    y = b.reduce("sum", None, x, axes=(1,))
    (source,) = sources_of(_by_hand(graph, _block_for_each_row))
    assert source.text.count("__syncthreads();") == 2
    broken = replace(source, text=source.text.replace("__syncthreads();", ""))
    library, data = library_of([broken], tmp_path), _data(2, 600)
    found = [run_once(graph, [broken], library, {x: data}, {}, order)[y] for order in (0, 1)]
    assert not np.array_equal(*found)


def test_a_collective_operation_that_some_lanes_miss_is_an_error(tmp_path: Path) -> None:
    graph, b, (x,) = _new((2, 600))
    b.reduce("sum", None, x, axes=(1,))
    (source,) = sources_of(_by_hand(graph, _block_for_each_row))
    broken = replace(source, text=source.text.replace("a0 = dop::across", "if (lane < 31) a0 = dop::across"))
    with pytest.raises(EmulationError, match="threads wait for others that do not come"):
        run_once(graph, [broken], library_of([broken], tmp_path), {x: _data(2, 600)}, {}, 0)


def test_a_kernel_takes_the_stream_first(tmp_path: Path) -> None:
    graph, b, (x,) = _new((40,))
    _scheduled(graph, b.elementwise(lambda v: v + 1, x))
    (source,) = sources_of(graph)
    library = library_of([source], tmp_path)
    run_once(graph, [source], library, {x: _data(40)}, {}, 0)
    assert library.emulation_stream() == STREAM
    assert [a.kind for a in source.arguments] == ["stream", "pointer", "pointer"]
    assert source.declaration == f'extern "C" void {source.name}(void*, const float*, float*);'


def test_a_schedule_for_the_cpu_is_refused() -> None:
    graph, b, (x,) = _new((40, 50))
    b.elementwise(lambda v: v + 1, x)
    with pytest.raises(Unsupported, match="no loop of its schedule runs on blocks or lanes"):
        sources_of(graph)


def test_text_of_a_row_reduction() -> None:
    graph, b, (x,) = _new((100, 198))
    _scheduled(graph, b.reduce("sum", None, x, axes=(1,)))
    (source,) = sources_of(graph)
    assert source.text.replace(source.name, "k") == (
        "static __global__ void __launch_bounds__(256) k_device("
        "const float* __restrict__ p0, float* __restrict__ p1) {\n"
        "  [[maybe_unused]] const unsigned lane = threadIdx.x % 32, group = threadIdx.x / 32;\n"
        "  const int64_t i0 = int64_t(blockIdx.x);\n"
        "  if (const int64_t i1 = group; i1 < dop::minimum<int64_t>(8, (INT64_C(100) - (INT64_C(8) * i0)))) {\n"
        "    double a0 = double(0);\n"
        "    for (int64_t i2 = 0; i2 < 7; ++i2) {\n"
        "      if (const int64_t i3 = lane; i3 < dop::minimum<int64_t>(32, (INT64_C(198) - (INT64_C(32) * i2)))) {\n"
        "        const float v0 = p0[1584 * i0 + 198 * i1 + 32 * i2 + i3];\n"
        "        const float v1 = v0;\n"
        "        a0 = a0 + double(v1);\n"
        "      }\n"
        "    }\n"
        "    a0 = dop::across_warp<dop::Sum>(a0);\n"
        "    if (lane == 0) p1[8 * i0 + i1] = float(a0);\n"
        "  }\n"
        "}\n"
        "\n"
        'extern "C" void k(void* stream, const float* __restrict__ p0, float* __restrict__ p1) {\n'
        "  dop::launch(stream, int64_t(13), 256, k_device, p0, p1);\n"
        "}\n"
    )


def test_text_of_packs() -> None:
    graph, b, (x,) = _new((4096,))
    _scheduled(graph, b.elementwise(lambda v: v + 1, x))
    (source,) = sources_of(graph)
    assert source.text.replace(source.name, "k") == (
        "template <int ALIGN>\n"
        "static __global__ void __launch_bounds__(256) k_device("
        "const float* __restrict__ p0, float* __restrict__ p1) {\n"
        "  [[maybe_unused]] const unsigned lane = threadIdx.x % 32, group = threadIdx.x / 32;\n"
        "  const int64_t i0 = int64_t(blockIdx.x);\n"
        "  if (const int64_t i1 = group; i1 < 8) {\n"
        "    if (const int64_t i2 = lane; i2 < 32) {\n"
        "      {\n"
        "        dop::Pack<float, 4> x0_0 = dop::load_pack<ALIGN, 4>(p0 + 1024 * i0 + 128 * i1 + 4 * i2);\n"
        "        dop::Pack<float, 4> x0_1;\n"
        "        #pragma unroll\n"
        "        for (int64_t i3 = 0; i3 < 4; ++i3) {\n"
        "          const float v0 = x0_0.at[i3];\n"
        "          const float v1 = (1.0f + v0);\n"
        "          x0_1.at[i3] = v1;\n"
        "        }\n"
        "        dop::store_pack<ALIGN>(p1 + 1024 * i0 + 128 * i1 + 4 * i2, x0_1);\n"
        "      }\n"
        "    }\n"
        "  }\n"
        "}\n"
        "\n"
        'extern "C" void k(void* stream, const float* __restrict__ p0, float* __restrict__ p1) {\n'
        "  if (dop::aligned(p0, p1)) dop::launch(stream, int64_t(4), 256, k_device<16>, p0, p1);\n"
        "  else dop::launch(stream, int64_t(4), 256, k_device<1>, p0, p1);\n"
        "}\n"
    )

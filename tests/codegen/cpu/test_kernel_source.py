"""Every form of kernel against NumPy in float64, on real memory."""

from __future__ import annotations

from pathlib import Path

import dace
import numpy as np
import pytest
import sympy

from daceopt.codegen.cpu.kernel_source import kernel_source
from daceopt.errors import Unsupported
from daceopt.ir.graph.graph import Graph
from daceopt.ir.kernel.kernel import Access, Kernel, Stage, param
from daceopt.ir.kernel.tasklet import Assignment
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.scalar import philox, scalar, types
from tests.codegen.cpu.kernels import IndexOutOfRange, run, sources_of
from tests.numerics import assert_within_rounding

F = dace.float32
RNG = np.random.default_rng(0)


def _data(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def _new(*shapes: tuple, dtype=F) -> tuple[Graph, Builder, list[str]]:
    graph = Graph("test")
    return graph, Builder(graph), [graph.add_input(f"x{k}", s, dtype) for k, s in enumerate(shapes)]


@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 5), (8, 33, 65), (0, 4), (2, 20000), (300000,)])
def test_elementwise(shape: tuple, tmp_path: Path) -> None:
    graph, b, (x,) = _new(shape)
    y = b.elementwise(lambda v: v * sympy.tanh(scalar.softplus(v)), x)
    data = _data(*shape)
    wide = data.astype(np.float64)
    result = run(graph, {x: data}, tmp_path)
    assert_within_rounding(result[y], wide * np.tanh(np.logaddexp(wide, 0)))


def test_broadcasting_permuting_and_slicing(tmp_path: Path) -> None:
    graph, b, (x, s) = _new((6, 20, 70), (20,))
    turned = b.transpose(x, (2, 1, 0))
    part = b.slice(turned, [3], [60], [2], [0])
    y = b.elementwise(lambda v, w: v * w + 1, part, b.reshape(s, (20, 1)))
    data, scale = _data(6, 20, 70), _data(20)
    result = run(graph, {x: data, s: scale}, tmp_path)
    assert_within_rounding(result[y], data.transpose(2, 1, 0)[3:60:2] * scale[:, None].astype(np.float64) + 1)


@pytest.mark.parametrize("shape", [(40, 70), (3, 128, 100), (1, 5)])
def test_transposed_copy(shape: tuple, tmp_path: Path) -> None:
    graph, b, (x,) = _new(shape)
    perm = (*range(len(shape) - 2), len(shape) - 1, len(shape) - 2)
    y = b.copy(b.transpose(x, perm))
    data = _data(*shape)
    np.testing.assert_array_equal(run(graph, {x: data}, tmp_path)[y], data.transpose(perm))


_REDUCTIONS = [
    ((5, 700), (1,)),
    ((64, 3000), (1,)),
    ((3000, 64), (0,)),
    ((30, 9000), (0,)),
    ((50, 6, 70), (0, 2)),
    ((2, 3, 4, 5), (1, 3)),
    ((200000,), (0,)),
    ((100, 200), (0, 1)),
    ((20, 30, 5000), (1,)),
    ((4, 0), (1,)),
    ((0, 4), (0,)),
    ((3, 1), (1,)),
]


@pytest.mark.share(3)
@pytest.mark.parametrize(("shape", "axes"), _REDUCTIONS)
@pytest.mark.parametrize("kind", ["sum", "max", "min", "prod"])
def test_reduction(kind: str, shape: tuple, axes: tuple, tmp_path: Path) -> None:
    graph, b, (x,) = _new(shape)
    y = b.reduce(kind, lambda v: v * 2, x, axes=axes)
    data = _data(*shape)
    if kind == "sum":  # terms that cancel would leave a result smaller than the roundings on the way
        data = np.abs(data)
    if kind == "prod":  # signs and a few factors of 3: exact
        data = np.where(data > 0, 0.5, -0.5).astype(np.float32)
        data.reshape(-1)[:: max(data.size // 9, 1)] = 1.5
    start = {"max": {"initial": -np.inf}, "min": {"initial": np.inf}}.get(kind, {})
    expected = getattr(np, kind)(data.astype(np.float64) * 2, axis=axes, **start)
    assert_within_rounding(run(graph, {x: data}, tmp_path)[y], expected)


@pytest.mark.parametrize("kind", ["max", "min"])
@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)])
def test_maximum_propagates_nan(kind: str, axes: tuple, tmp_path: Path) -> None:
    graph, b, (x,) = _new((60, 70))
    y = b.reduce(kind, None, x, axes=axes)
    data = _data(60, 70)
    data[11, 13], data[5, 6] = np.nan, np.inf
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(run(graph, {x: data}, tmp_path)[y], getattr(np, kind)(data, axis=axes))


def test_long_sums_are_as_good_as_pairwise(tmp_path: Path) -> None:
    graph, b, (x,) = _new((1 << 20,))
    y = b.reduce("sum", None, x, axes=(0,))
    data = (RNG.random(1 << 20) + 1).astype(np.float32)
    assert_within_rounding(run(graph, {x: data}, tmp_path)[y], data.astype(np.float64).sum(), ulps=1)


@pytest.mark.share(2)
@pytest.mark.parametrize("shape", [(4096, 40), (12, 2000), (35, 7, 33), (8, 64)])
@pytest.mark.parametrize("kind", ["sum", "max", "min"])
def test_columns_of_a_few_rows_at_a_time(kind, shape, tmp_path: Path) -> None:
    graph, b, (x,) = _new(shape)
    y = b.reduce(kind, None, x, axes=(0,))
    (source,) = sources_of(graph)
    assert "#pragma GCC unroll" in source.text
    data = (RNG.random(shape) + 0.5).astype(np.float32) if kind == "sum" else 1 + _data(*shape) / 1000
    exact = getattr(np, kind)(data.astype(np.float64), axis=0)
    assert_within_rounding(run(graph, {x: data}, tmp_path)[y], exact, ulps=3 if kind == "sum" else 8)
    if kind in ("max", "min"):
        data[1, ..., 3], data[3, ..., 5] = np.nan, np.inf
        np.testing.assert_array_equal(run(graph, {x: data}, tmp_path)[y], getattr(np, kind)(data, axis=0))


def test_sums_of_rows_round_as_little_as_pairwise_ones(tmp_path: Path) -> None:
    """Of elements that are almost equal: long chains of additions in float32 round each of them alike."""
    graph, b, (x,) = _new((2048, 1024))
    y = b.reduce("sum", None, x, axes=(1,))
    data = np.linspace(-1, 1, 2048 * 1024).astype(np.float32).reshape(2048, 1024)
    exact = data.astype(np.float64).sum(1)
    error = run(graph, {x: data}, tmp_path)[y] - exact
    assert np.linalg.norm(error) <= 2 * np.linalg.norm(data.sum(1, dtype=np.float32) - exact)


@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)])
def test_any_and_all(axes: tuple, tmp_path: Path) -> None:
    """Of truth in memory, where any byte but 0 is true, and of comparisons; collected in bytes."""
    graph, b, (x,) = _new((64, 300))
    flag = graph.add_input("flag", (64, 300), dace.bool_)
    found = {(k, n): b.reduce(k, None, n, axes=axes) for k in ("max", "min") for n in (flag,)}
    found |= {(k, x): b.reduce(k, lambda v: scalar.gt(v, 2), x, axes=axes, dtype=dace.bool_) for k in ("max", "min")}
    data, truth = _data(64, 300), RNG.integers(0, 3, (64, 300)).astype(np.uint8)
    truth[:, 7], truth[9], truth[:, 11], truth[13] = 0, 0, 2, 1
    truth[13, 7] = truth[9, 11] = 0
    data[:, 4], data[:, 5], data[6], data[7, 5] = 3, 0, np.nan, 9
    result = run(graph, {x: data, flag: truth.view(np.bool_)}, tmp_path)
    for (kind, name), array in found.items():
        values = data > 2 if name == x else truth != 0
        np.testing.assert_array_equal(result[array], {"max": np.any, "min": np.all}[kind](values, axis=axes))
    assert all("bool a" not in s.text for s in sources_of(graph))


def test_lanes_of_truth_values_stay_together(tmp_path: Path) -> None:
    """As conditions, operands and numbers, read from memory and computed."""
    graph, b, (x, m) = _new((300,), (300,), dtype=dace.float32)
    flag = graph.add_input("flag", (300,), dace.bool_)
    chosen = b.elementwise(lambda v, f: scalar.select(f, v, -v), x, flag)
    counted = b.elementwise(
        lambda v, w, f: scalar.cast(scalar.logical_and(scalar.lt(v, w), f), dace.float32), x, m, flag
    )
    total = b.reduce("sum", lambda f: scalar.cast(f, dace.int64), flag, axes=(0,), dtype=dace.int64)
    u, v, f = _data(300), _data(300), RNG.integers(0, 2, 300).astype(bool)
    found = run(graph, {x: u, m: v, flag: f}, tmp_path)
    np.testing.assert_array_equal(found[chosen], np.where(f, u, -u))
    np.testing.assert_array_equal(found[counted], (u < v) & f)
    assert found[total] == f.sum()
    assert all("dop::truth(" in s.text and "float(v" not in s.text for s in sources_of(graph))


@pytest.mark.parametrize("dtype", [dace.int8, dace.int32, dace.int64, dace.uint8])
def test_integer_kernels(dtype, tmp_path: Path) -> None:
    graph, b, (x, y) = _new((50,), (50,), dtype=dtype)
    kind = dtype.type
    quotient = b.elementwise(scalar.idiv, x, y)
    modulo = b.elementwise(scalar.pymod, x, y)
    total = b.reduce("sum", None, x, axes=(0,), dtype=dace.int64)
    wrapped = b.elementwise(lambda v: v * 3 + 1, x)
    low = 0 if np.dtype(kind).kind == "u" else -40
    u, v = RNG.integers(low, 80, 50).astype(kind), RNG.integers(low, 5, 50).astype(kind)
    v[3] = 0
    result = run(graph, {x: u, y: v}, tmp_path)
    safe = np.where(v == 0, 1, v).astype(np.int64)
    np.testing.assert_array_equal(result[quotient], np.where(v == 0, 0, np.trunc(u / safe)).astype(kind))
    np.testing.assert_array_equal(result[modulo], np.where(v == 0, 0, np.mod(u.astype(np.int64), safe)).astype(kind))
    np.testing.assert_array_equal(result[total], u.astype(np.int64).sum())
    np.testing.assert_array_equal(result[wrapped], (u * kind(3) + kind(1)).astype(kind))


def test_booleans_and_selection(tmp_path: Path) -> None:
    graph, b, (x,) = _new((100,))
    mask = b.elementwise(lambda v: scalar.logical_and(scalar.gt(v, 0), scalar.logical_not(scalar.isinf(v))), x)
    y = b.elementwise(lambda m, v: scalar.select(m, v, -scalar.infinity()), mask, x)
    any_ = b.reduce("max", None, mask, axes=(0,))
    data = _data(100)
    data[:3] = np.nan, np.inf, -np.inf
    result = run(graph, {x: data}, tmp_path)
    expected = (data > 0) & ~np.isinf(data)
    np.testing.assert_array_equal(result[mask], expected)
    np.testing.assert_array_equal(result[y], np.where(expected, data, -np.inf))
    assert result[any_].dtype == np.bool_
    assert bool(result[any_])


def test_symbolic_extents(tmp_path: Path) -> None:
    n = dace.symbolic.symbol("n", dace.int64)
    graph, b, (x,) = _new((n, 40))
    y = b.elementwise(lambda v: v + 1, x)
    rows, columns = b.reduce("sum", None, y, axes=(1,)), b.reduce("sum", None, y, axes=(0,))
    for extent in (0, 1, 77):
        data = _data(extent, 40)
        result = run(graph, {x: data}, tmp_path, {"n": extent})
        wide = data.astype(np.float64) + 1
        assert_within_rounding(result[rows], wide.sum(1))
        assert_within_rounding(result[columns], wide.sum(0))


def test_load_reads_rows_and_reports_bad_indices(tmp_path: Path) -> None:
    graph = Graph("gather")
    b = Builder(graph)
    table, ids = graph.add_input("table", (10, 16), F), graph.add_input("ids", (5,), dace.int64)
    out = graph.add_array("out", (5, 16), F)
    b.map(
        (5, 16),
        {"t": (table, lambda i, j: (None, j)), "k": (ids, lambda i, j: (i,))},
        {"o": (out, lambda i, j: (i, j))},
        lambda params, t, k: scalar.load(t, k),
    )
    data, index = _data(10, 16), np.array([3, 9, 0, 1, 3])
    np.testing.assert_array_equal(run(graph, {table: data, ids: index}, tmp_path)[out], data[index])
    with pytest.raises(IndexOutOfRange):
        run(graph, {table: data, ids: np.array([0, 1, 10, 2, 3])}, tmp_path)
    with pytest.raises(IndexOutOfRange):
        run(graph, {table: data, ids: np.array([0, 1, -1, 2, 3])}, tmp_path)


@pytest.mark.parametrize("dtype", [F, dace.bool_, dace.float16], ids=lambda t: t.ctype)
def test_load_from_an_array_that_may_be_empty(tmp_path: Path, dtype: dace.typeclass) -> None:
    graph = Graph("gather")
    b = Builder(graph)
    extent = dace.symbolic.symbol("n", dace.int64)
    table, ids = graph.add_input("table", (extent, 16), dtype), graph.add_input("ids", (5,), dace.int64)
    graph.symbols["n"] = (table, 0)
    out = graph.add_array("out", (5, 16), dtype)
    reads = {"t": (table, lambda i, j: (None, j)), "k": (ids, lambda i, j: (i,))}
    b.map((5, 16), reads, {"o": (out, lambda i, j: (i, j))}, lambda params, t, k: scalar.load(t, k))
    data, index = _data(10, 16).astype(types.to_numpy(dtype)), np.array([3, 9, 0, 1, 3])
    np.testing.assert_array_equal(run(graph, {table: data, ids: index}, tmp_path, {"n": 10})[out], data[index])
    with pytest.raises(IndexOutOfRange) as caught:
        run(graph, {table: data[:0], ids: index}, tmp_path, {"n": 0})
    memory = caught.value.args[1]
    assert memory[table].any() and not memory[out].any(), "read behind the array"


def test_uniform_is_the_same_in_cpp_and_numpy(tmp_path: Path) -> None:
    graph = Graph("dropout")
    b = Builder(graph)
    out = graph.add_array("out", (4, 100), F)
    seed = graph.seed()
    b.map(
        (4, 100),
        {"s": (seed, lambda i, j: (0,))},
        {"o": (out, lambda i, j: (i, j))},
        lambda params, s: scalar.uniform(s, 7, params[0] * 100 + params[1]),
    )
    result = run(graph, {"rng_seed": np.array([-12345], np.int64)}, tmp_path)[out]
    np.testing.assert_array_equal(result, philox.uniform(-12345, 7, np.arange(400).reshape(4, 100)))


def _softmax(rows: int, columns: int) -> tuple[Graph, str, str]:
    """Softmax along rows as one kernel of three stages."""
    graph = Graph("softmax")
    x = graph.add_input("x", (rows, columns), F)
    y = graph.add_array("y", (rows, columns), F)
    i, j = param(0), param(1)
    v, m, e, s, o = (scalar.symbol(n, F) for n in ("v", "m", "e", "s", "o"))
    stages = [
        Stage((i, j), {"v": Access(x, (i, j))}, {"m": Access("top", (), "max")}, (Assignment(m, v, F),)),
        Stage(
            (i, j),
            {"v": Access(x, (i, j)), "t": Access("top", ())},
            {"e": Access("row", (j,)), "s": Access("total", (), "sum")},
            (Assignment(e, sympy.exp(v - scalar.symbol("t", F)), F), Assignment(s, e, F)),
        ),
        Stage(
            (i, j),
            {"r": Access("row", (j,)), "t": Access("total", ())},
            {"o": Access(y, (i, j))},
            (Assignment(o, scalar.symbol("r", F) / scalar.symbol("t", F), F),),
        ),
    ]
    local = {"top": (F, ()), "row": (F, (columns,)), "total": (F, ())}
    graph.add_kernel(Kernel("softmax", {i: rows, j: columns}, stages, (i,), local))
    return graph, x, y


@pytest.mark.parametrize(("rows", "columns"), [(5, 9), (200, 512), (3, 20000)])
def test_fused_rows(rows: int, columns: int, tmp_path: Path) -> None:
    graph, x, y = _softmax(rows, columns)
    data = _data(rows, columns)
    data[0, :3] = -np.inf
    wide = data.astype(np.float64)
    e = np.exp(wide - wide.max(1, keepdims=True))
    assert_within_rounding(run(graph, {x: data}, tmp_path)[y], e / e.sum(1, keepdims=True))


def test_gradient_reduced_over_the_parallel_loop(tmp_path: Path) -> None:
    """One kernel that writes a row statistic, an element-wise result and a sum over rows."""
    graph = Graph("norm_gradient")
    x = graph.add_input("x", (300, 50), F)
    y, scale = graph.add_array("y", (300, 50), F), graph.add_array("scale", (50,), F)
    i, j = param(0), param(1)
    v, s, o, g, t = (scalar.symbol(n, F) for n in "vsogt")
    stages = [
        Stage((i, j), {"v": Access(x, (i, j))}, {"s": Access("total", (), "sum")}, (Assignment(s, v * v, F),)),
        Stage(
            (i, j),
            {"v": Access(x, (i, j)), "t": Access("total", ())},
            {"o": Access(y, (i, j)), "g": Access(scale, (j,), "sum")},
            (Assignment(o, v / sympy.sqrt(t), F), Assignment(g, o * v, F)),
        ),
    ]
    graph.add_kernel(Kernel("norm", {i: 300, j: 50}, stages, (i,), {"total": (F, ())}))
    data = _data(300, 50)
    wide = data.astype(np.float64)
    normed = wide / np.sqrt((wide**2).sum(1, keepdims=True))
    first = run(graph, {x: data}, tmp_path)
    assert_within_rounding(first[y], normed)
    assert_within_rounding(first[scale], (normed * wide).sum(0))
    second = run(graph, {x: data}, tmp_path)
    np.testing.assert_array_equal(first[scale], second[scale])


def test_equal_kernels_have_one_text() -> None:
    graph, b, (x, y) = _new((8, 16), (8, 16))
    one = b.elementwise(lambda v: v * scalar.sigmoid(v), x, label="first")
    b.elementwise(lambda v: v * scalar.sigmoid(v), y, label="second")
    b.elementwise(lambda v: v * scalar.sigmoid(v) + 1, one)
    names = [kernel_source(graph, e.kernel).name for e in graph.kernels()]
    assert names[0] == names[1] != names[2]


def test_text_of_an_elementwise_kernel() -> None:
    graph, b, (x,) = _new((8, 128, 256))
    b.elementwise(lambda v: v * sympy.tanh(scalar.softplus(v)), x)
    (source,) = sources_of(graph)
    assert source.text.replace(source.name, "k") == (
        'extern "C" void k(const float* __restrict__ p0, float* __restrict__ p1) {\n'
        "  #pragma omp parallel\n"
        "  {\n"
        "    #pragma omp for simd schedule(static) nowait\n"
        "    for (int64_t i0 = 0; i0 < 262144; ++i0) {\n"
        "      const float v0 = p0[i0];\n"
        "      const float e = dop::exp(dop::minimum(v0, 20.0f));\n"
        "      const float n = (e * (2.0f + e));\n"
        "      const float q = (n / (2.0f + n));\n"
        "      const float v1 = (q * v0);\n"
        "      p1[i0] = v1;\n"
        "    }\n"
        "  }\n"
        "}\n"
    )


def _scattered(step: int) -> Graph:
    """Adds x[i, j] to y[step * i + 2 * j]; without a step, that is a sum over i."""
    graph, b, (x,) = _new((4, 3))
    out = graph.add_array("y", (30,), F)
    b.map(
        (4, 3),
        {"x": (x, lambda i, j: (i, j))},
        {"out": (out, lambda i, j: (step * i + 2 * j,), "sum")},
        lambda _, x: x,
    )
    graph.add_output(out)
    return graph


@pytest.mark.parametrize("step", [1, 2, 4])
def test_a_write_that_meets_another_is_refused(step: int) -> None:
    graph = _scattered(step)
    with pytest.raises(Unsupported, match="reaches elements of y.* from several iterations"):
        kernel_source(graph, graph.kernels()[0].kernel)


@pytest.mark.parametrize("step", [0, 3, 5, 6, 7])
def test_a_write_whose_elements_stand_apart_is_not(step: int) -> None:
    graph = _scattered(step)
    assert kernel_source(graph, graph.kernels()[0].kernel)

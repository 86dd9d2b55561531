"""Products against float64 numpy: shapes, strides, batches, epilogues, types, symbols, threads."""

from __future__ import annotations

import ctypes
import platform
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import dace
import numpy as np
import pytest
import torch

from daceopt import libs
from daceopt.cost import rates
from daceopt.cost.limits import Limits
from daceopt.cost.rates import assume, typical
from daceopt.errors import Unsupported
from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.sdfg import sdfg_of
from daceopt.ir.nodes.library import Contraction
from daceopt.ir.scalar import types
from daceopt.ir.scalar.dims import row_major
from tests.libs.harness import compile_graph
from tests.numerics import assert_within_rounding

LIBRARIES = [name for name in ("mkl", "onednn_product", "native") if name in libs.names()]


def elements(array: np.ndarray) -> list[int]:
    """Strides in elements; numpy gives an empty array strides of 0, which stand for broadcasting here."""
    if array.size == 0:
        return [max(1, s) for s in row_major(array.shape)]
    return [s // array.itemsize for s in array.strides]


def flat(array: np.ndarray) -> np.ndarray:
    """The memory below a view, from its first element on."""
    base = array
    while base.base is not None:
        base = base.base
    return base


def build(
    a: np.ndarray, b: np.ndarray, y: np.ndarray, bias=None, residual=None, **attributes
) -> tuple[Graph, list[np.ndarray]]:
    """A graph of one product whose operands are views with exactly the strides of the given arrays."""
    graph = Graph("product")
    reads, memory = {}, []
    for connector, array in {"A": a, "B": b, "Bias": bias, "C": residual}.items():
        if array is None:
            continue
        root = flat(array)
        dtype = types.from_numpy(array.dtype)
        offset = (array.__array_interface__["data"][0] - root.__array_interface__["data"][0]) // array.itemsize
        source = graph.add_input(connector, (max(1, root.size),), dtype)
        reads[connector] = graph.add_view(source, connector, array.shape, elements(array), offset)
        memory.append(root)
    out = graph.add_array("y", y.shape, types.from_numpy(y.dtype), elements(y))
    graph.add_node(Contraction(**attributes), reads, {"Y": out})
    graph.add_output(out)
    return graph, [*memory, y]


def check(library: str, a, b, bias=None, residual=None, y=None, alpha=1.0, activation=None) -> None:
    wide = [
        np.asarray(x, dtype=np.float64) if x is not None and x.dtype.kind == "f" else x for x in (a, b, bias, residual)
    ]
    expected = alpha * np.matmul(wide[0], wide[1]) if alpha != 1.0 else np.matmul(wide[0], wide[1])
    single = alpha * np.matmul(a, b)
    expected = expected + (0 if bias is None else wide[2]) + (0 if residual is None else wide[3])
    single = single + (0 if bias is None else bias) + (0 if residual is None else residual)
    if activation == "relu":
        expected, single = np.maximum(expected, 0), np.maximum(single, 0)
    y = np.full(expected.shape, 7, dtype=a.dtype) if y is None else y
    graph, memory = build(a, b, y, bias, residual, alpha=alpha, activation=activation)
    with libs.prefer(Contraction=library):
        compile_graph(graph)(*memory)
    assert_within_rounding(y, expected, single)


def random(*shape: int, dtype=np.float32) -> np.ndarray:
    generator = np.random.default_rng(sum(shape) + len(shape))
    if np.dtype(dtype).kind in "iu":
        return generator.integers(0, 9, shape).astype(dtype)
    return generator.standard_normal(shape).astype(dtype)


VIEWS = {
    "rows": lambda x: x,
    "columns": lambda x: np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2),
    "inner": lambda x: np.repeat(x, 2, axis=-1)[..., ::2],
    "padded": lambda x: np.concatenate([x, x], axis=-1)[..., : x.shape[-1]],
    "flipped": lambda x: np.ascontiguousarray(x[..., ::-1, :])[..., ::-1, :],
    "broadcast": lambda x: np.broadcast_to(x[..., :1, :].copy(), x.shape),
}


@pytest.mark.share(9)
@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("view_b", VIEWS)
@pytest.mark.parametrize("view_a", VIEWS)
def test_strides(library: str, view_a: str, view_b: str) -> None:
    a, b = VIEWS[view_a](random(2, 5, 7)), VIEWS[view_b](random(2, 7, 6))
    check(library, a, b)


@pytest.mark.share(4)
@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(
    ("shape_a", "shape_b"),
    [
        ((5, 7), (7, 6)),
        ((3, 5, 7), (7, 6)),  # merges into rows
        ((5, 7), (3, 7, 6)),
        ((2, 3, 5, 7), (2, 3, 7, 6)),
        ((2, 1, 5, 7), (3, 7, 6)),
        ((2, 3, 5, 7), (2, 1, 7, 6)),
        ((4, 1, 7), (7, 6)),  # one row each
        ((3, 2, 2, 1, 7), (3, 2, 1, 7, 1)),  # one column whose rows merge
        ((4, 1, 7), (4, 7, 1)),
        ((1, 1, 1), (1, 1)),
        ((3, 5, 1), (1, 6)),
        ((0, 7), (7, 6)),
        ((5, 0), (0, 6)),
        ((5, 7), (7, 0)),
        ((0, 5, 7), (7, 6)),
        ((3, 5, 0), (3, 0, 6)),
    ],
)
def test_shapes(library: str, shape_a: tuple[int, ...], shape_b: tuple[int, ...]) -> None:
    a, b = random(*shape_a), random(*shape_b)
    check(library, a, b)
    check(library, a, b, bias=random(shape_b[-1]))


@pytest.mark.share(4)
@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("activation", [None, "relu"])
@pytest.mark.parametrize("bias_shape", [(6,), (1, 6), (5, 1), (5, 6), (3, 1, 6), (2, 1, 5, 1), (1,)])
def test_bias_and_residual(library: str, bias_shape: tuple[int, ...], activation: str | None) -> None:
    a, b = random(2, 3, 5, 7), random(7, 6)
    check(library, a, b, bias=random(*bias_shape), activation=activation)
    residual = np.ascontiguousarray(random(2, 3, 6, 5)).swapaxes(-1, -2)
    check(library, a, b, bias=random(*bias_shape), residual=residual, activation=activation, alpha=0.5)


SWAPPED = {
    "rows inside": lambda x: x,
    "batch inside": lambda x: np.ascontiguousarray(x.swapaxes(0, 1)).swapaxes(0, 1),
    "all reversed": lambda x: np.ascontiguousarray(x.T).T,
    "batch overlaps": lambda x: np.lib.stride_tricks.as_strided(flat(x), x.shape, [x.itemsize * s for s in (1, 16, 1)]),
}


@pytest.mark.share(4)
@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("view_y", ["rows inside", "batch inside"])
@pytest.mark.parametrize("view_a", SWAPPED)
def test_a_long_batch_of_few_rows(library: str, view_a: str, view_y: str) -> None:
    a, b = SWAPPED[view_a](random(9, 3, 7)), random(7, 6)
    for more in ({}, {"bias": random(9, 1, 6)}, {"bias": random(3, 1), "residual": random(3, 9, 6).swapaxes(0, 1)}):
        check(library, a, b, y=SWAPPED[view_y](np.zeros((9, 3, 6), np.float32)), activation="relu", **more)
    check(library, SWAPPED[view_a](random(9, 3, 7))[None].repeat(2, 0), random(2, 1, 7, 6))


@pytest.mark.parametrize("library", LIBRARIES)
def test_result_may_be_transposed_or_padded(library: str) -> None:
    a, b = random(3, 5, 7), random(3, 7, 6)
    check(library, a, b, bias=random(6), y=np.zeros((3, 6, 5), np.float32).swapaxes(1, 2), residual=random(3, 5, 6))
    check(library, a, b[0], y=np.zeros((5, 3, 6), np.float32).swapaxes(0, 1))
    check(library, a[0], b, y=np.zeros((5, 3, 6), np.float32).swapaxes(0, 1))


@pytest.mark.parametrize("library", LIBRARIES)
def test_large_enough_for_threads(library: str) -> None:
    check(library, random(4, 130, 65), random(4, 65, 70), bias=random(70), activation="relu")
    check(library, random(300, 65)[:, ::2], random(33, 90), residual=random(300, 90))


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("shape", [(64, 8, 8), (64, 64, 64), (64, 65, 64)], ids=str)  # oneDNN's own threads: the last
def test_who_calls_has_as_many_threads_as_before(library: str, shape: tuple[int, int, int]) -> None:
    before, (rows, inner, columns) = torch.get_num_threads(), shape
    check(library, random(rows, inner), VIEWS["columns"](random(inner, columns)))
    check(library, random(4, rows, inner), random(4, inner, columns), y=np.zeros((4, rows, columns), np.float32))
    assert torch.get_num_threads() == before


@pytest.mark.share(5)
@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("rows", [11, 12, 130, 1030])  # around where factors that stand transposed are turned round
@pytest.mark.parametrize(("inner", "columns"), [(200, 190), (131, 259), (33, 1030)])
def test_large_factors_that_stand_transposed(library: str, rows: int, inner: int, columns: int) -> None:
    b = random(columns, inner).T
    check(library, random(rows, inner), b, bias=random(columns), alpha=0.5, activation="relu")
    check(library, random(rows, inner), VIEWS["padded"](random(columns, inner)).T, residual=random(rows, columns))
    check(library, random(2, rows, inner), b, y=np.zeros((rows, 2, columns), np.float32).swapaxes(0, 1))


BATCHES = {
    "of columns": lambda x: VIEWS["columns"](x),
    "inside rows": lambda x: np.ascontiguousarray(x.swapaxes(0, 1)).swapaxes(0, 1),
    "twice, one order": lambda x: np.ascontiguousarray(x.reshape(2, -1, *x.shape[1:]).transpose(1, 0, 3, 2)).transpose(
        1, 0, 3, 2
    ),
    "padded": lambda x: VIEWS["padded"](x),
    "broadcast": lambda x: np.broadcast_to(x[:1], x.shape),
}


@pytest.mark.share(4)
@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("view", BATCHES)
def test_a_batch_that_shares_its_right_factor(library: str, view: str) -> None:
    columns = 70
    a, b = BATCHES[view](random(34, 67, 70)), random(columns, 70).T  # more rows than one copy has
    shape = (*a.shape[:-1], columns)
    check(library, a, b, bias=random(columns), residual=random(*shape), alpha=0.5, activation="relu")
    check(library, a, b, bias=random(*shape[:-1], 1), y=VIEWS["padded"](np.zeros(shape, np.float32)))
    check(library, a, np.broadcast_to(b, (*shape[:-2], 70, columns)), y=VIEWS["columns"](np.zeros(shape, np.float32)))


@pytest.mark.share(2)
@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(("count", "rows", "inner"), [(3, 66, 1024), (18, 130, 1050)])
def test_a_batch_whose_results_stand_transposed(library: str, count: int, rows: int, inner: int) -> None:
    a, b = random(count, rows, inner), random(70, inner).T
    shape = (count, rows, 70)
    standing = np.zeros((count, 70, rows), np.float32).swapaxes(1, 2)
    check(library, a, b, y=standing, bias=random(70), residual=VIEWS["columns"](random(*shape)), activation="relu")
    check(library, a, b, y=np.zeros((count, 70, 2 * rows), np.float32)[..., :rows].swapaxes(1, 2), alpha=0.5)
    check(library, VIEWS["padded"](a), b, y=standing.copy(order="K"), bias=random(count, rows, 1))


@pytest.mark.parametrize("dtype", ["float64", "int8", "uint8", "int16", "int32", "int64", "uint64"])
def test_element_types(dtype: str) -> None:
    a, b = random(3, 5, 7, dtype=dtype), random(7, 6, dtype=dtype)
    check("native", a, b)
    if dtype == "float64":
        check("mkl", a, b, bias=random(6, dtype=dtype), alpha=0.1)


def test_symbolic_sizes() -> None:
    graph = Graph("product")
    batch = dace.symbolic.symbol("s0", dace.int64)
    a = graph.add_input("a", (batch, 5, 7), dace.float32)
    b = graph.add_input("b", (7, 6), dace.float32)
    y = graph.add_array("y", (batch, 5, 6), dace.float32)
    node = Contraction()
    graph.add_node(node, {"A": a, "B": b}, {"Y": y})
    graph.add_output(y)
    assert node.flops(graph) == 2 * batch * 5 * 6 * 7
    assert node.bytes(graph) == 4 * (batch * 35 + 42 + batch * 30)
    run = compile_graph(graph)
    for size in (1, 3):
        left, right, out = random(size, 5, 7), random(7, 6), np.zeros((size, 5, 6), np.float32)
        run(left, right, out, s0=size)
        assert_within_rounding(out, left.astype(np.float64) @ right, left @ right)


def test_nan_and_infinity_pass_the_epilogue() -> None:
    a = np.array([[np.nan], [np.inf], [-np.inf], [1.0]], np.float32)
    y = np.zeros((4, 1), np.float32)
    graph, memory = build(a, np.ones((1, 1), np.float32), y, np.zeros(1, np.float32), activation="relu")
    compile_graph(graph)(*memory)
    np.testing.assert_array_equal(y[:, 0], [np.nan, np.inf, 0, 1])


@pytest.mark.parametrize("library", LIBRARIES)
def test_eight_threads(library: str) -> None:
    a, b = random(4, 130, 65), random(4, 65, 70)
    graph, memory = build(a, b, np.zeros((4, 130, 70), np.float32))
    with libs.prefer(Contraction=library):
        run = compile_graph(graph)
    results = [np.zeros((4, 130, 70), np.float32) for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda y: [run(*memory[:-1], y) for _ in range(5)], results))
    for y in results:
        assert_within_rounding(y, a.astype(np.float64) @ b, a @ b)


def test_refusals_say_why() -> None:
    a, b = random(5, 7), random(7, 6)
    graph, _ = build(a, b, np.zeros((5, 6, 2), np.float32)[..., 0])
    (node,) = graph.nodes()
    assert "must be 1" in str(libs.reasons(node, graph)["mkl"])
    with pytest.raises(Unsupported, match=r"no library implements Contraction.*must be 1"):
        libs.choose(node, graph)
    graph, _ = build(random(5, 7, dtype="int32"), random(7, 6, dtype="int32"), np.zeros((5, 6), np.int32))
    (node,) = graph.nodes()
    assert libs.choose(node, graph).name == "native"
    assert "element types" in str(libs.reasons(node, graph)["mkl"])


def test_missing_torch_library_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    from daceopt.libs import contraction, mkl  # noqa: F401

    monkeypatch.setattr(mkl, "_lacking", lambda: ["sgemm_64_"])
    missing = libs.get("mkl").available()
    assert missing is not None and "sgemm_64_" in missing.what and "install" in missing.install
    graph, _ = build(random(5, 7), random(7, 6), np.zeros((5, 6), np.float32))
    (node,) = graph.nodes()
    assert libs.choose(node, graph).name != "mkl"


def test_an_implemented_graph_is_valid_for_dace() -> None:
    graph, _ = build(random(5, 7), random(7, 6), np.zeros((5, 6), np.float32), bias=random(6))
    needs = libs.implement(graph)
    graph.validate()
    (tasklet,) = graph.nodes()
    assert isinstance(tasklet, dace.nodes.Tasklet) and tasklet.language is dace.dtypes.Language.CPP
    assert set(tasklet.in_connectors) == {"A", "B", "Bias"} and set(tasklet.out_connectors) == {"Y"}
    assert "daceopt::contraction_mkl(" in sdfg_of(graph).sdfg.generate_code()[0].clean_code
    assert "daceopt/contraction.h" in needs.flags.headers
    assert [job.label.split()[1] for job in needs.jobs] == ["scratch.cpp", "contraction_mkl.cpp"]


def test_programs_without_torch_take_another_library() -> None:
    graph, _ = build(random(5, 7), random(7, 6), np.zeros((5, 6), np.float32))
    (node,) = graph.nodes()
    with libs.portable():
        assert libs.reasons(node, graph)["mkl"] == "it works only in a process that has PyTorch"
        assert libs.choose(node, graph).name == "onednn_product"
    assert libs.choose(node, graph).name == "mkl"


@pytest.mark.parametrize(("faster", "first"), [(1.03, "mkl"), (1.1, "onednn_product")])
def test_products_go_to_the_library_that_is_faster_by_far(faster: float, first: str) -> None:
    products = (("mkl", 1e11), ("onednn_product", faster * 1e11))
    panels, narrow, *others = libs.PREFERENCE["Contraction"]  # these two are for products of a kind
    with assume(replace(typical(Limits(2)), products=products)):
        candidates = libs.candidates("Contraction")
        assert candidates[:3] == (panels, narrow, first) and sorted(candidates[2:]) == sorted(others)
        with libs.prefer(Contraction="native"):
            assert libs.candidates("Contraction") == ("native",)


def test_what_multiplies_under_the_clock_multiplies() -> None:
    a, b = random(6, 6), random(6, 6)
    for find in rates._multipliers.values():
        c, multiply = np.full((6, 6), np.nan, np.float32), find()
        if multiply is not None:
            multiply(*(ctypes.c_void_p(x.ctypes.data) for x in (a, b, c)), 6)
            assert_within_rounding(c, a.astype(np.float64) @ b, a @ b)


def test_a_result_is_written_whatever_was_there() -> None:
    a, b = random(5, 7), random(7, 6)
    check("onednn_product", a, b, y=np.full((5, 6), np.nan, np.float32))


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_result_that_no_library_writes_is_copied(library: str) -> None:
    a, b, y = random(2, 5, 7), random(7, 6), np.zeros((5, 6, 2), np.float32).transpose(2, 0, 1)
    graph, _ = build(a, b, y)
    with libs.prefer(Contraction=library):
        libs.implement(graph)
    product, copy = graph.nodes()
    (rows,) = graph.inputs_of(copy)
    assert graph.outputs_of(product) == [rows] and graph.is_contiguous(rows)
    assert graph.outputs_of(copy) == graph.outputs and graph.strides(graph.outputs[0]) == (1, 12, 2)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("batches", [13, 30])
def test_batches_have_as_many_dimensions_as_arrays_have(library: str, batches: int) -> None:
    """More than a tensor of oneDNN has, in an order that makes neighbours of none."""
    batch = [2 if k in (0, 3, batches - 1) else 1 for k in range(batches)]
    a, b = random(*batch, 3, 4), random(*batch, 4, 5)
    check(library, a.swapaxes(0, 3), b)


def run_again(library: str, a: np.ndarray, b: np.ndarray, alpha: float = 1.0, calls: int = 3) -> np.ndarray:
    """What the last of some calls gives: from the second on, products of subnormal factors are of scaled copies."""
    y = np.full((a.shape[0], b.shape[1]), 7, dtype=a.dtype)
    graph, memory = build(a, b, y, alpha=alpha)
    with libs.prefer(Contraction=library):
        run = compile_graph(graph)
    for _ in range(calls):
        run(*memory)
    return y


TYPES = {"mkl": ("float32", "float64"), "onednn_product": ("float32",)}
BLAS = [(name, dtype) for name in LIBRARIES for dtype in TYPES.get(name, ())]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="flags of subnormal numbers are read on x86-64 alone")
@pytest.mark.parametrize(("library", "dtype"), BLAS)
def test_scaled_factors_keep_bits_below_the_smallest_number(library: str, dtype: str) -> None:
    smallest = np.finfo(dtype).smallest_subnormal
    a, b = np.full((33, 64), smallest, dtype), np.full((64, 40), 0.5, dtype)
    assert (run_again(library, a, b) == 32 * smallest).all()  # unscaled, each half is rounded to 0
    assert (run_again(library, -a, b, alpha=4.0) == -128 * smallest).all()


@pytest.mark.parametrize("views", [("rows", "rows"), ("columns", "padded"), ("padded", "columns")])
@pytest.mark.parametrize("largest", [-1.0, 0.9])
@pytest.mark.parametrize(("library", "dtype"), BLAS)
def test_factors_with_many_subnormal_numbers(library: str, dtype: str, largest: float, views: tuple[str, str]) -> None:
    generator, limits = np.random.default_rng(3), np.finfo(dtype)
    lowest, highest = np.log2(limits.smallest_subnormal), np.log2(limits.max)

    def factor(*shape: int) -> np.ndarray:
        powers = generator.uniform(lowest, largest * highest if largest > 0 else largest, shape)
        return (generator.choice([-1, 1], shape) * np.exp2(powers.astype(np.longdouble))).astype(dtype)

    a, b = VIEWS[views[0]](factor(70, 33)), VIEWS[views[1]](np.clip(factor(33, 50), -1, 1))
    y = run_again(library, a, b)
    wide_a, wide_b = a.astype(np.longdouble), b.astype(np.longdouble)
    rounding = 33 * (limits.eps * (abs(wide_a) @ abs(wide_b)) + limits.smallest_subnormal)
    assert (abs(y - wide_a @ wide_b) <= rounding).all()


@pytest.mark.parametrize(("library", "dtype"), BLAS)
@pytest.mark.parametrize("value", [np.inf, np.nan, "largest"])
def test_numbers_that_no_scale_takes(library: str, dtype: str, value: float | str) -> None:
    a, b = np.full((20, 16), np.finfo(dtype).smallest_subnormal, dtype), random(16, 24, dtype=dtype)
    a[3, 5] = a[4, 1] = np.finfo(dtype).max if value == "largest" else value
    b[5] = b[1] = 1
    y = run_again(library, a, b)
    np.testing.assert_array_equal(y[3:5], np.full((2, 24), a[3, 5]))
    assert (abs(y[5:]) < 1e-30).all()

"""The C++ of selecting, scattering and scanning algorithms, beside the same in NumPy, for every element type."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pytest

from daceopt.errors import DaceoptError
from daceopt.ir.graph.graph import Graph
from daceopt.ir.interpreter.interpret import interpret
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.scalar import types
from daceopt.ops.core import algorithm
from daceopt.ops.families.searching import Wanted
from daceopt.ops.families.sorting import Ties
from tests.libs.harness import RunFailed, buffers, compile_graph

FLOATS = ["float32", "float64"]
NUMBERS = [*FLOATS, "int8", "int64", "uint8", "uint64"]  # of integers the narrowest and the widest
OTHERS = ["int16", "int32", "uint16", "uint32"]
Types = Sequence[str]

of_types = pytest.mark.parametrize(
    "numbers", [NUMBERS, pytest.param(OTHERS, marks=pytest.mark.breadth)], ids=["numbers", "others"]
)


class Call(NamedTuple):
    """One use of an algorithm; outputs are given as what they are filled with before (None: absent)."""

    function: str
    inputs: Sequence[np.ndarray | None]
    outputs: Sequence[np.ndarray | None]
    parameters: Sequence[int]


def program(calls: Sequence[Call]) -> tuple[Graph, dict[str, np.ndarray], dict[str, np.ndarray]]:
    """(graph of all the calls, its inputs by name, its outputs by name)."""
    graph, feeds, results = Graph("algorithms"), {}, {}
    for call in calls:
        names: list[str | None] = []
        for value in call.inputs:
            names.append(None if value is None else graph.add_input("x", value.shape, types.from_numpy(value.dtype)))
            feeds.update({} if value is None else {str(names[-1]): np.ascontiguousarray(value)})
        out: list[str | None] = []
        for value in call.outputs:
            out.append(None if value is None else graph.add_array("y", value.shape, types.from_numpy(value.dtype)))
            results.update({} if value is None else {str(out[-1]): value.copy()})
        algorithm.call(Builder(graph), call.function, names, out, call.parameters)
    for name in results:
        graph.add_output(name)
    return graph, feeds, results


def compare(*calls: Call) -> list[np.ndarray]:
    """Compiled and interpreted results are the same; returns them."""
    graph, feeds, results = program(calls)
    arrays = {**feeds, **results}
    compile_graph(graph)(*(arrays[n] for n in buffers(graph)))
    expected = interpret(graph, feeds)
    for name, value in results.items():
        np.testing.assert_array_equal(value, expected[name])
    return list(results.values())


def refuse(message: str, *calls: Call) -> None:
    """The compiled code reports an error and leaves the outputs as they were; so does the interpreter."""
    graph, feeds, results = program(calls)
    arrays = {**feeds, **results}
    before = {n: v.copy() for n, v in results.items()}
    with pytest.raises(RunFailed, match=message):
        compile_graph(graph)(*(arrays[n] for n in buffers(graph)))
    with pytest.raises((DaceoptError, IndexError), match=message):
        interpret(graph, feeds)
    if calls[0].function != "scatter_rows":  # which copies its data first
        for name, value in results.items():
            np.testing.assert_array_equal(value, before[name])


def sample(dtype: str, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Few distinct values, so that there are ties; negative ones and NaN where the type has them."""
    values = np.random.default_rng(seed).integers(0, 5, shape)
    if dtype == "bool":
        return values > 1
    if dtype.startswith("uint"):
        return values.astype(dtype) + np.asarray(np.iinfo(dtype).max - 4, dtype)
    result = (values - 2).astype(dtype)
    if dtype in FLOATS and result.size:
        result.reshape(-1)[:: max(result.size // 3, 1)] = np.nan
    return result


def indices(*shape: int) -> np.ndarray:
    return np.full(shape, -7, np.int64)


def ties_of(k: int, extent: int) -> list[Ties]:
    return [ties for ties in Ties if ties != Ties.ATEN_SORT or k == extent]


@of_types
def test_top_indices(numbers: Types) -> None:
    calls = []
    for dtype in numbers:
        for shape, k in (((2, 7, 3), 3), ((1, 40, 1), 40), ((2, 4, 1), 1), ((2, 4, 2), 0), ((0, 3, 1), 2)):
            for largest, ties in product((0, 1), ties_of(k, shape[1])):
                out = indices(shape[0], k, shape[2])
                calls.append(Call("top_indices", [sample(dtype, shape)], [out], [*shape, k, largest, ties]))
    compare(*calls)


def test_top_indices_of_many_lanes() -> None:
    x = np.random.default_rng(1).standard_normal((50, 300, 2)).astype(np.float32)
    (found,) = compare(Call("top_indices", [x], [indices(50, 20, 2)], [50, 300, 2, 20, 1, 0]))
    np.testing.assert_array_equal(found, np.argsort(-x, axis=1, kind="stable")[:, :20])


def test_few_of_long_rows() -> None:
    """Those that pass by are compared in vectors: in rising and falling order, with ties, zeros of both signs, NaN."""
    rng = np.random.default_rng(4)
    for dtype in ("float32", "float64", "int8", "int64"):
        rows = np.round(rng.standard_normal((6, 203)) * 40).astype(dtype)
        rows[0], rows[1] = np.arange(203) % 128, (-np.arange(203)) // 2
        if dtype in FLOATS:
            rows[2, ::3], rows[3, 1::7], rows[4, ::50], rows[5, -1] = -0.0, 0.0, np.nan, np.inf
            rows[2, 1::3], rows[3, ::7] = 0.0, np.finfo(dtype).smallest_subnormal
        calls = [
            Call("top_indices", [rows[:, :, None]], [indices(6, k, 1)], [6, 203, 1, k, largest, ties])
            for k in (1, 3, 4, 5, 32, 33, 203)
            for largest, ties in product((0, 1), ties_of(k, 203))
        ]
        compare(*calls)


def test_top_indices_of_too_few() -> None:
    refuse(
        "k of 4|k is larger",
        Call("top_indices", [sample("float32", (1, 3, 1))], [indices(1, 4, 1)], [1, 3, 1, 4, 1, 0]),
    )


@of_types
def test_ranked_index(numbers: Types) -> None:
    """Of equal elements, the one that ATen finds."""
    calls = []
    for dtype in numbers:
        for shape in ((2, 7, 3), (1, 40, 1), (3, 1, 1), (2, 2, 2), (4, 3, 1), (0, 3, 1), (3, 211, 2)):
            x, out = sample(dtype, shape), indices(shape[0], 1, shape[2])
            wanted = [(Wanted.RANK, rank) for rank in {0, shape[1] // 3, shape[1] - 1}]
            for kind, rank in [*wanted, (Wanted.MEDIAN, 0), (Wanted.MEDIAN_WITHOUT_NAN, 0)]:
                calls.append(Call("ranked_index", [x], [out.copy()], [*shape, kind, rank]))
    everywhere = np.full((1, 5, 1), np.nan, np.float32)
    calls += [Call("ranked_index", [everywhere], [indices(1, 1, 1)], [1, 5, 1, kind, 0]) for kind in Wanted]
    compare(*calls)


def test_ranked_index_beyond_the_axis() -> None:
    refuse("rank", Call("ranked_index", [sample("float32", (1, 3, 1))], [indices(1, 1, 1)], [1, 3, 1, Wanted.RANK, 3]))


@of_types
def test_unique(numbers: Types) -> None:
    calls = []
    for dtype in [*numbers, "bool"]:
        for shape in ((1, 12, 1), (2, 6, 1), (2, 9, 2), (1, 1, 1), (1, 0, 1), (0, 3, 2)):
            x = sample(dtype, shape)
            ranks = np.moveaxis(np.unique(x, return_inverse=True)[1].reshape(shape), 1, 0)
            count = len(np.unique(ranks.reshape(shape[1], shape[0] * shape[2]), axis=0))
            out = [np.zeros((shape[0], count, shape[2]), dtype), indices(count), indices(shape[1]), indices(count)]
            calls += [Call("unique", [x], out, [*shape, count, in_order]) for in_order in (0, 1)]
    compare(*calls)


def test_unique_without_some_outputs() -> None:
    x = np.array([3, 1, 3, 2], np.int32)
    (y,) = compare(Call("unique", [x], [np.zeros(3, np.int32), None, None, None], [1, 4, 1, 3, 1]))
    (inverse,) = compare(Call("unique", [x], [None, None, indices(4), None], [1, 4, 1, 3, 0]))
    assert y.tolist() == [1, 2, 3]
    assert inverse.tolist() == [0, 1, 0, 2]


def test_unique_of_another_number() -> None:
    x = np.array([3, 1, 3, 2], np.int32)
    refuse(r"expected 2 results.*found 3", Call("unique", [x], [np.zeros(2, np.int32), *[None] * 3], [1, 4, 1, 2, 1]))


@of_types
def test_nonzero(numbers: Types) -> None:
    calls = []
    for dtype in [*numbers, "bool"]:
        for shape in ((12,), (3, 1, 4), (2, 0), (1,)):
            x = sample(dtype, shape) * np.array(np.arange(np.prod(shape)).reshape(shape) % 2, bool)
            x = x.astype(dtype)
            calls.append(
                Call(
                    "nonzero",
                    [x],
                    [indices(len(shape), np.count_nonzero(x))],
                    [np.count_nonzero(x), len(shape), *shape],
                )
            )
    compare(*calls, Call("nonzero", [np.array([0.0, -0.0, 1.0])], [indices(1, 1)], [1, 1, 3]))


@pytest.mark.parametrize("declared", [1, 3])
def test_nonzero_of_another_number(declared: int) -> None:
    x = np.array([True, False, True])
    refuse(f"expected {declared} results.*found 2", Call("nonzero", [x], [indices(1, declared)], [declared, 1, 3]))


@of_types
def test_scatter_rows(numbers: Types) -> None:
    calls = []
    for dtype in [*numbers, "bool"]:
        for rows, width, places in ((5, 3, [4, 0, 4, 4]), (6, 1, [[0, 1], [1, 5]]), (3, 2, []), (2, 0, [1])):
            for reduction in range(5):
                where = np.array(places, np.int64)
                data, updates = sample(dtype, (rows, width)), sample(dtype, (where.size, width), seed=1)
                parameters = [rows, width, where.size, reduction]
                calls.append(Call("scatter_rows", [data, where, updates], [np.zeros_like(data)], parameters))
    compare(*calls)


def test_scatter_of_wide_rows_keeps_the_order() -> None:
    data, where = np.zeros((2, 5000), np.float32), np.array([1, 1, 1] * 10)
    updates = np.random.default_rng(0).standard_normal((30, 5000)).astype(np.float32)
    for reduction in (0, 1):
        compare(Call("scatter_rows", [data, where, updates], [np.ones_like(data)], [2, 5000, 30, reduction]))


@pytest.mark.parametrize("place", [-1, 3, 2**40])
def test_scatter_out_of_range(place: int) -> None:
    data, updates = np.zeros((3, 2), np.int8), np.ones((1, 2), np.int8)
    call = Call("scatter_rows", [data, np.array([place]), updates], [np.zeros_like(data)], [3, 2, 1, 0])
    refuse("scatter: ", call)


@of_types
def test_cumulate(numbers: Types) -> None:
    calls = []
    for dtype in numbers:
        x = np.nan_to_num(sample(dtype, (2, 5, 3)), nan=3).astype(dtype)
        for switches in np.ndindex(2, 2, 2):
            calls.append(Call("cumulate", [x], [np.zeros_like(x)], [2, 5, 3, *switches]))
        calls.append(Call("cumulate", [x[:, :0]], [x[:, :0]], [2, 0, 3, 0, 0, 0]))
        rows = np.nan_to_num(sample(dtype, (19, 6)), nan=3).astype(dtype)  # 8 at a time, and what is left
        for switches in np.ndindex(2, 2, 2):
            calls.append(Call("cumulate", [rows], [np.zeros_like(rows)], [19, 6, 1, *switches]))
        calls.append(Call("cumulate", [rows[:8, :0]], [rows[:8, :0]], [8, 0, 1, 0, 0, 0]))
    compare(*calls)


def test_bitcast() -> None:
    calls = []
    for width in (8, 16, 32, 64):
        names = [f"int{width}", f"uint{width}", *([f"float{width}"] if width > 16 else [])]
        for source in names:
            x = np.random.default_rng(0).integers(0, 256, 64, np.uint8).view(source)
            calls += [Call("bitcast", [x], [np.zeros(x.shape, to)], [x.size]) for to in names if to != source]
    compare(*calls)


@pytest.mark.parametrize("dtype", FLOATS)
def test_determinant(dtype: str) -> None:
    singular = np.array([[[1, 2], [2, 4]], [[0, 2], [3, 1]], [[0, 0], [0, 0]]], dtype)
    calls = [(np.random.default_rng(0).standard_normal((4, 6, 6)).astype(dtype)), singular, np.zeros((2, 0, 0), dtype)]
    for x in calls:
        graph, feeds, results = program([Call("determinant", [x], [np.zeros(len(x), dtype)], x.shape[:2])])
        compile_graph(graph)(*feeds.values(), *results.values())
        expected = np.linalg.det(x.astype(np.float64))
        np.testing.assert_allclose(next(iter(results.values())), expected, rtol=4 * np.finfo(dtype).eps, atol=1e-12)


def boxes(count: int, centre: bool) -> np.ndarray:
    rng = np.random.default_rng(5)
    first, size = rng.uniform(0, 4, (2, count, 2)), rng.uniform(0.5, 3, (2, count, 2))
    corners = [first, size] if centre else [first, first + size]
    return np.concatenate(corners if centre else corners[:: 1 - 2 * (count % 2)], -1).astype(np.float32)


@pytest.mark.parametrize("centre", [False, True])
def test_non_max_suppression(centre: bool) -> None:
    calls = []
    for count in (1, 8, 25):
        scores = np.round(np.random.default_rng(2).uniform(size=(2, 3, count)), 1).astype(np.float32)
        limit, worst, least = np.array([4]), np.float32(0.3).reshape(1), np.float32(0.4).reshape(1)
        for given in ([None] * 3, [limit, None, None], [limit, worst, None], [limit, worst, least]):
            x = boxes(count, centre)
            kept = _kept(x, scores, given, centre)
            calls.append(
                Call("non_max_suppression", [x, scores, *given], [indices(kept, 3)], [2, 3, count, kept, int(centre)])
            )
    compare(*calls)
    assert any(c.outputs[0].shape[0] > 6 for c in calls)  # type: ignore[union-attr]


def _kept(x: np.ndarray, scores: np.ndarray, given: Sequence[Any], centre: bool) -> int:
    """How many boxes ONNX's reference evaluator keeps."""
    from tests.ops.single import reference

    limit, worst, least = given
    filled = [np.zeros(1, np.int64) if limit is None else limit, np.zeros(1, np.float32) if worst is None else worst]
    found = reference("NonMaxSuppression", [x, scores, *filled, least], 1, 23, center_point_box=int(centre))
    return len(found[0])


def test_other_number_of_boxes() -> None:
    x, scores = boxes(3, False)[:1], np.ones((1, 1, 3), np.float32)
    call = Call("non_max_suppression", [x, scores, np.array([1]), None, None], [indices(2, 3)], [1, 1, 3, 2, 0])
    refuse("expected 2 results.*found 1", call)


@pytest.mark.parametrize("dtype", FLOATS)
def test_product_gradient(dtype: str) -> None:
    """Also where a factor is zero, or two are."""
    x = np.array([[2, 0, 3, -1], [0, 5, 0, 2], [1, 2, 3, 4]], dtype).T.reshape(1, 4, 3)
    dy = np.arange(1, 13).reshape(1, 4, 3).astype(dtype)
    calls = []
    for switches in np.ndindex(2, 2):
        calls.append(Call("product_gradient", [x, dy], [np.zeros_like(x)], [1, 4, 3, *switches]))
    calls.append(Call("product_gradient", [x[:, :0], dy[:, :0]], [x[:, :0]], [1, 0, 3, 0, 0]))
    inclusive = compare(*calls)[0]
    by_hand = [1, 4 * 2 + 7 * (2 * 3) + 10 * (2 * 3 * -1)]  # column 0: x = 2, 0, 3, -1 and dy = 1, 4, 7, 10
    np.testing.assert_array_equal(inclusive[0, :2, 0], by_hand)


@of_types
def test_running_extremum(numbers: Types) -> None:
    calls = []
    for dtype in [*numbers, "bool"]:
        x = sample(dtype, (2, 6, 3))
        for largest in (0, 1):
            parameters = [2, 6, 3, largest]
            calls.append(Call("running_extremum", [x], [np.zeros_like(x), indices(2, 6, 3)], parameters))
            calls.append(Call("running_extremum", [x], [None, indices(2, 6, 3)], parameters))
    compare(*calls)


@of_types
def test_searchsorted(numbers: Types) -> None:
    calls = []
    for dtype in numbers:
        rows, values = np.sort(sample(dtype, (3, 7)), axis=1), sample(dtype, (3, 5), seed=1)
        order = np.argsort(sample(dtype, (3, 7), seed=2), axis=1)
        for shared, right in np.ndindex(2, 2):
            for given in (None, order):
                lines = rows if given is None else np.take_along_axis(rows, np.argsort(given, 1), 1)
                calls.append(Call("searchsorted", [lines, values, given], [indices(3, 5)], [3, 7, 5, shared, right]))
    found = compare(*calls)
    at = next(k for k, dtype in enumerate(numbers) if dtype not in FLOATS)
    lines, values = np.sort(sample(numbers[at], (3, 7)), axis=1), sample(numbers[at], (3, 5), seed=1)
    expected = np.array([np.searchsorted(line, row) for line, row in zip(lines, values)])
    np.testing.assert_array_equal(found[at * 8], expected)


def test_an_operand_that_becomes_a_broadcast_is_copied() -> None:
    """Lowerings run from the results backward: what an algorithm reads may become a view after it was called."""
    graph = Graph("algorithms")
    x = graph.add_input("x", (1,), types.from_name("float32"))
    y, z = (graph.add_array(n, (4,), types.from_name("float32")) for n in "yz")
    algorithm.call(Builder(graph), "cumulate", [y], [z], [1, 4, 1, 0, 0, 0])
    Builder(graph).expand(x, (4,), out=y)
    graph.add_output(z)
    (node,) = [n for n in graph.nodes() if isinstance(n, algorithm.Algorithm)]
    assert all(graph.is_contiguous(n) for n in graph.reads(node).values())
    np.testing.assert_array_equal(interpret(graph, {x: np.ones(1, np.float32)})[z], [1, 2, 3, 4])

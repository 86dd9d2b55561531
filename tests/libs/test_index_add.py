"""Scattered addition: results, determinism, index checks."""

from __future__ import annotations

import numpy as np
import pytest

from daceopt import libs
from daceopt.ir.graph.graph import Graph
from daceopt.ir.nodes.library import IndexAdd
from daceopt.ir.scalar import types
from tests.libs.harness import RunFailed, compile_graph
from tests.numerics import assert_within_rounding


def program(index: np.ndarray, dy: np.ndarray, dw: np.ndarray):
    graph = Graph("scatter")
    names = [graph.add_input(h, a.shape, types.from_numpy(a.dtype)) for h, a in (("index", index), ("dy", dy))]
    out = graph.add_array("dw", dw.shape, types.from_numpy(dw.dtype))
    graph.add_node(IndexAdd(), {"Index": names[0], "dY": names[1]}, {"dW": out})
    graph.add_output(out)
    return compile_graph(graph)


@pytest.mark.share(2)
@pytest.mark.parametrize("index_dtype", [np.int32, np.int64])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("shape", "rows", "width"), [((4, 6), 5, 8), ((8, 128), 300, 256), ((), 3, 4), ((0,), 3, 4), ((50,), 7, 1)]
)
def test_sums_rows(index_dtype: type, dtype: type, shape: tuple[int, ...], rows: int, width: int) -> None:
    generator = np.random.default_rng(0)
    index = np.asarray(generator.integers(-rows, rows, shape), dtype=index_dtype)
    dy = generator.standard_normal((*shape, width)).astype(dtype)
    dw = np.full((rows, width), 7, dtype)
    program(index, dy, dw)(index, dy, dw)
    expected, single = np.zeros((rows, width)), np.zeros((rows, width), dtype)
    np.add.at(expected, index, dy.astype(np.float64))
    np.add.at(single, index, dy)
    assert_within_rounding(dw, expected, single)
    np.testing.assert_array_equal(dw, single)  # added in the order of the indices, whatever the threads


@pytest.mark.share(2)
@pytest.mark.parametrize("width", [1, 100, 256])
@pytest.mark.parametrize("most", [1, 3, 300])
def test_most_rows_go_to_one_place(width: int, most: int) -> None:
    """Threads share columns there, if rows have many."""
    generator = np.random.default_rng(1)
    index = np.where(np.arange(1000) % 10, generator.integers(0, most, 1000), generator.integers(-300, 300, 1000))
    dy, dw = generator.standard_normal((1000, width)).astype(np.float32), np.full((300, width), 7, np.float32)
    program(index, dy, dw)(index, dy, dw)
    single = np.zeros((300, width), np.float32)
    np.add.at(single, index, dy)
    np.testing.assert_array_equal(dw, single)


@pytest.mark.parametrize("bad", [5, -6, 2**40])
def test_index_out_of_range_is_reported(bad: int) -> None:
    index, dy, dw = np.array([0, bad, 1]), np.ones((3, 4), np.float32), np.zeros((5, 4), np.float32)
    with pytest.raises(RunFailed, match=rf"index {bad} at position 1 is outside of \[-5, 5\)"):
        program(index, dy, dw)(index, dy, dw)


def test_refusals_say_why() -> None:
    graph = Graph("scatter")
    index = graph.add_input("index", (3,), types.from_numpy(np.float32))
    dy = graph.add_input("dy", (3, 4), types.from_numpy(np.float32))
    dw = graph.add_array("dw", (5, 4), types.from_numpy(np.float32))
    node = IndexAdd()
    graph.add_node(node, {"Index": index, "dY": dy}, {"dW": dw})
    assert "expected int32 or int64" in str(libs.reasons(node, graph)["native"])

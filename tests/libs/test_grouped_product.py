"""Products of groups of rows: results, gradients, layouts, ends that are wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from daceopt import libs
from daceopt.ir.graph.graph import Graph
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.nodes.library import GroupedProduct
from daceopt.ir.scalar import types
from tests.libs.harness import RunFailed, compile_graph
from tests.numerics import assert_within_rounding

ROWS, SIZE, COLUMNS, GROUPS = 23, 5, 7, 4


def _program(a: np.ndarray, b: np.ndarray, ends: np.ndarray, inner: bool) -> tuple[Any, tuple[int, ...]]:
    graph = Graph("groups")
    pairs = (("a", a), ("b", b), ("ends", ends))
    names = [graph.add_input(name, x.shape, types.from_numpy(x.dtype)) for name, x in pairs]
    out = Builder(graph, "product").grouped_product(*names, inner=inner)
    graph.add_output(out)
    return compile_graph(graph), graph.shape(out)


def _reference(a: np.ndarray, b: np.ndarray, ends: np.ndarray, inner: bool, kind: type) -> np.ndarray:
    a, b = a.astype(kind), b.astype(kind)
    y = np.zeros((len(ends), a.shape[1], b.shape[1]) if inner else (len(a), b.shape[2]), kind)
    for group, (first, last) in enumerate(zip([0, *ends[:-1]], ends)):
        y[group if inner else slice(first, last)] = (
            a[first:last].T @ b[first:last] if inner else a[first:last] @ b[group]
        )
    return y


@pytest.mark.share(2)
@pytest.mark.parametrize("library", ["mkl", "native"])
@pytest.mark.parametrize("inner", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("ends", [[6, 6, 20, 23], [0, 0, 0, 0], [23, 23, 23, 23], [1, 2, 3, 9]])
def test_groups_of_rows(library: str, inner: bool, dtype: type, ends: list[int]) -> None:
    """Also empty ones, and rows behind the last."""
    generator = np.random.default_rng(0)
    a = generator.standard_normal((ROWS, SIZE)).astype(dtype)
    b = generator.standard_normal((ROWS, COLUMNS) if inner else (GROUPS, SIZE, COLUMNS)).astype(dtype)
    last = np.asarray(ends, np.int32)
    with libs.prefer(GroupedProduct=library):
        run, shape = _program(a, b, last, inner)
        y = np.full(shape, 7, dtype)
        run(a, b, last, y)
    assert_within_rounding(y, _reference(a, b, last, inner, np.float64), _reference(a, b, last, inner, dtype))


@pytest.mark.parametrize("ends", [[5, 4, 9, 23], [-1, 2, 3, 4], [1, 2, 3, 24], [1, 2, 3, 2**40]])
def test_wrong_ends_are_reported(ends: list[int]) -> None:
    a, b, y = np.ones((ROWS, SIZE)), np.ones((GROUPS, SIZE, COLUMNS)), np.zeros((ROWS, COLUMNS))
    last = np.asarray(ends)
    with pytest.raises(RunFailed, match=r"group \d ends at row -?\d+; expected from \d+ to 23"):
        _program(a, b, last, False)[0](a, b, last, y)


def test_refusals_say_why() -> None:
    graph = Graph("groups")
    kinds = {"a": np.float32, "b": np.float64, "ends": np.int32}
    shapes = {"a": (ROWS, SIZE), "b": (GROUPS, SIZE, COLUMNS), "ends": (GROUPS,)}
    a, b, ends = (graph.add_input(name, shapes[name], types.from_numpy(np.dtype(kinds[name]))) for name in kinds)
    y = graph.add_array("y", (ROWS, COLUMNS), types.from_numpy(np.dtype(np.float32)))
    node = GroupedProduct()
    graph.add_node(node, {"A": a, "B": b, "Ends": ends}, {"Y": y})
    assert "expected float32 or float64 for all" in str(libs.reasons(node, graph)["mkl"])

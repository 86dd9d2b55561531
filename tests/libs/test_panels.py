"""Products whose right factor a loop holds: against float64, over shapes at the edges of panels and row blocks."""

from __future__ import annotations

from functools import cache
from typing import Any

import dace
import numpy as np
import pytest
import torch

from daceopt import libs
from daceopt.ir.graph.graph import Graph
from daceopt.ir.nodes.library import Contraction
from daceopt.ir.scalar import types
from daceopt.libs.panels import Panels
from tests.libs.harness import compile_graph
from tests.numerics import assert_within_rounding

M, N, K = (dace.symbolic.symbol(name, dace.int64) for name in "mnk")


def _graph(transposed: bool, dtype: Any, epilogue: str = "", loops: tuple[str, ...] = ("step0",)) -> Graph:
    """One product of open sizes; ``epilogue``: what it has beside its factors."""
    graph = Graph("product")
    a = graph.add_input("a", (M, K), dtype)
    b = graph.add_input("b", (N, K) if transposed else (K, N), dtype)
    reads = {"A": a, "B": graph.add_view(b, "turned", (K, N), (1, K)) if transposed else b}
    if "residual" in epilogue:
        strides = (1, M) if "columns" in epilogue else (2 * N, 1)
        reads["C"] = graph.add_view(
            graph.add_input("c", (M, 2 * N), dtype), "part", (M, N), strides, 0 if "columns" in epilogue else N
        )
    if "bias" in epilogue:
        reads["Bias"] = graph.add_input("bias", (N,), dtype)
    y = graph.add_array("y", (M, N), dtype)
    options = {"alpha": 0.5, "activation": "relu"} if "scaled" in epilogue else {}
    graph.add_node(Contraction(inputs=list(reads), held_over=loops, **options), reads, {"Y": y})
    graph.add_output(y)
    for name in ("step0", "step1"):
        graph.size_names[name] = None
    return graph


@cache
def _compiled(transposed: bool, name: str, epilogue: str = "", loops: tuple[str, ...] = ("step0",)) -> Any:
    return compile_graph(_graph(transposed, types.from_numpy(np.dtype(name)), epilogue, loops))


def _operands(m: int, k: int, n: int, dtype: str, transposed: bool = True) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng(m + 7 * k + 31 * n)
    a, b = random.standard_normal((m, k)).astype(dtype), random.standard_normal((k, n)).astype(dtype)
    return a, np.ascontiguousarray(b.T) if transposed else b, np.full((m, n), 7, dtype)


def _product(b: np.ndarray, transposed: bool) -> np.ndarray:
    return b.T if transposed else b


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("transposed", [True, False])
def test_shapes(dtype: str, transposed: bool) -> None:
    run, wide = _compiled(transposed, dtype), np.float64 if dtype == "float32" else np.longdouble
    for m in (0, 1, 5, 6, 7, 16, 25):
        for k in (0, 1, 9, 513, 1100):
            for n in (1, 15, 16, 63, 64, 65, 200):
                a, b, y = _operands(m, k, n, dtype, transposed)
                run(a, b, y, m=m, n=n, k=k, step0=0, step1=0)
                right = _product(b, transposed)
                assert_within_rounding(y, a.astype(wide) @ right.astype(wide), a @ right)


@pytest.mark.parametrize("n", [40, 200])
def test_threads_share_panels_and_rows(n: int) -> None:
    """Fewer panels than threads, and more."""
    run, before = _compiled(True, "float32"), torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        a, b, y = _operands(77, 300, n, "float32")
        run(a, b, y, m=77, n=n, k=300, step0=0, step1=0)
    finally:
        torch.set_num_threads(before)
    assert_within_rounding(y, a.astype(np.float64) @ b.T, a @ b.T)


@pytest.mark.parametrize("epilogue", ["residual", "residual by columns", "bias", "residual, bias, scaled", "scaled"])
def test_what_is_added(epilogue: str) -> None:
    run = _compiled(True, "float32", epilogue)
    m, k, n = 9, 600, 70
    a, b, y = _operands(m, k, n, "float32")
    random = np.random.default_rng(5)
    c = random.standard_normal((m, 2 * n)).astype(np.float32)
    bias = random.standard_normal(n).astype(np.float32)
    given = [c] * ("residual" in epilogue) + [bias] * ("bias" in epilogue)
    run(a, b, *given, y, m=m, n=n, k=k, step0=0, step1=0)

    def expected(dtype: type) -> np.ndarray:
        found = (0.5 if "scaled" in epilogue else 1.0) * (a.astype(dtype) @ b.T.astype(dtype))
        if "residual" in epilogue:
            found = found + (c.reshape(-1)[: m * n].reshape(n, m).T if "columns" in epilogue else c[:, n:])
        found = found + bias if "bias" in epilogue else found
        return np.maximum(found, 0) if "scaled" in epilogue else found

    assert_within_rounding(y, expected(np.float64), expected(np.float32))


@pytest.mark.parametrize(
    ("loops", "first", "later"),
    [
        (("step0",), (0, 5), (1, 0)),
        (("step0", "step1 from k - 1"), (0, 39), (0, 38)),
        (("step0 from 3",), (3, 0), (0, 0)),
    ],
)
def test_the_factor_is_packed_in_the_first_iteration(loops: Any, first: Any, later: Any) -> None:
    """What stands there afterwards is not looked at."""
    run = _compiled(True, "float32", "", loops)
    a, b, y = _operands(4, 40, 66, "float32")
    expected = a.astype(np.float64) @ b.T
    sizes = {"m": 4, "n": 66, "k": 40}
    run(a, b, y, **sizes, step0=first[0], step1=first[1])
    assert_within_rounding(y, expected, a @ b.T)
    run(a, np.zeros_like(b), y, **sizes, step0=later[0], step1=later[1])
    assert_within_rounding(y, expected, a @ b.T)
    run(a, 2 * b, y, **sizes, step0=first[0], step1=first[1])
    assert_within_rounding(y, 2 * expected, a @ (2 * b.T))


def test_nan_and_infinity_stay_in_their_columns() -> None:
    """What a panel is filled up with multiplies infinities, too."""
    run = _compiled(True, "float32")
    a, b, y = _operands(3, 5, 3, "float32")
    a[0, 0], b[2, 1] = np.inf, np.nan
    run(a, b, y, m=3, n=3, k=5, step0=0, step1=0)
    with np.errstate(invalid="ignore"):
        expected = a @ b.T
    np.testing.assert_array_equal(np.isnan(y), np.isnan(expected))
    np.testing.assert_array_equal(np.isinf(y), np.isinf(expected))


def test_what_it_takes() -> None:
    graph = _graph(True, dace.float32, loops=())
    assert Panels().supports(graph.nodes()[0], graph) == "no loop holds the right factor"
    assert libs.choose(graph.nodes()[0], graph).name != "panels"
    held = _graph(True, dace.float32)
    assert libs.choose(held.nodes()[0], held).name == "panels"
    whole = _graph(True, dace.int32)
    assert "expected one of" in str(Panels().supports(whole.nodes()[0], whole))

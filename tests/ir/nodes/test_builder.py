"""The builder: broadcasting, views where possible, copies where not, and whole-array results."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import dace
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided

from daceopt.ir.graph.graph import Graph
from daceopt.ir.interpreter.interpret import interpret
from daceopt.ir.nodes.builder import Builder, broadcast_shapes, reshaped_strides

F = dace.float32
N = dace.symbolic.symbol("n", dace.int64)
X = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)


def start() -> tuple[Graph, Builder, str]:
    graph = Graph("test")
    return graph, Builder(graph), graph.add_input("x", (4, 6), F)


def result(graph: Graph, b: Builder, name: str) -> np.ndarray:
    graph.add_output(b.copy(name) if graph.is_view(name) else name)
    graph.validate()
    return interpret(graph, {"x_1": X})[graph.outputs[0]]


def test_broadcasting() -> None:
    assert broadcast_shapes((4, 1), (6,)) == (4, 6) and broadcast_shapes((N, 1), (1, 6)) == (N, 6)
    assert broadcast_shapes() == ()
    with pytest.raises(ValueError, match="do not broadcast at axis -1"):
        broadcast_shapes((4, 6), (5,))
    with pytest.raises(ValueError, match="do not broadcast"):
        broadcast_shapes((N,), (5,))


VIEWS: list[tuple[Callable[[Builder, str], str], Callable[[np.ndarray], Any]]] = [
    (lambda b, x: b.transpose(x, [1, 0]), np.transpose),
    (lambda b, x: b.reshape(x, (2, 2, 6)), lambda v: v.reshape(2, 2, 6)),
    (lambda b, x: b.reshape(b.transpose(x, [1, 0]), (24,)), lambda v: v.T.reshape(24)),
    (lambda b, x: b.expand(x, (3, 4, 6)), lambda v: np.broadcast_to(v, (3, 4, 6))),
    (lambda b, x: b.slice(x, [3, 1], [-1, 6], [-2, 2]), lambda v: v[3::-2, 1:6:2]),
    (lambda b, x: b.slice(x, [2], [2], [1], [1]), lambda v: v[:, 2:2]),
    (lambda b, x: b.unsqueeze(x, [0, -1]), lambda v: v[None, ..., None]),
    (lambda b, x: b.squeeze(b.unsqueeze(x, [1])), lambda v: v),
    (lambda b, x: b.reshape(b.slice(x, [0], [3], [1], [1]), (12,)), lambda v: v[:, :3].reshape(12)),
    (lambda b, x: b.cast(b.cast(x, dace.int32), F), np.trunc),
    (lambda b, x: b.full((2, 3), 7, F), lambda v: np.full((2, 3), 7)),
    (lambda b, x: b.matmul(x, b.squeeze(b.slice(x, [0], [1], [1], [0]), [0])), lambda v: v @ v[0]),
    (
        lambda b, x: b.reduce("sum", lambda u, v: u * v, x, x, axes=[-1], keepdims=True),
        lambda v: (v * v).sum(1)[:, None],
    ),
    (lambda b, x: b.reduce("max", None, x, axes=[]), lambda v: v),
]


@pytest.mark.parametrize(("build", "numpy"), VIEWS)
def test_values(build: Callable[[Builder, str], str], numpy: Callable[[np.ndarray], Any]) -> None:
    graph, b, x = start()
    np.testing.assert_allclose(result(graph, b, build(b, x)), numpy(X), rtol=1e-5)


def test_a_view_stands_for_the_array_it_is_delivered_to() -> None:
    graph, b, x = start()
    y = graph.add_array("y", (6, 4), F)
    z = b.elementwise(lambda v: v + 1, y)
    view = b.transpose(x, [1, 0], out=y)
    assert graph.is_view(view) and not graph.consumers(y)
    np.testing.assert_array_equal(result(graph, b, z), X.T + 1)


def test_an_output_gets_a_copy_of_the_view() -> None:
    graph, b, x = start()
    y = graph.add_array("y", (6, 4), F)
    graph.add_output(y)
    b.transpose(x, [1, 0], out=y)
    np.testing.assert_array_equal(interpret(graph, {x: X})[y], X.T)


@settings(max_examples=300)
@given(
    shape=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    order=st.randoms(use_true_random=False),
    cuts=st.lists(st.integers(1, 4), max_size=3),
)
def test_reshaped_strides_agree_with_numpy(shape: list[int], order: Any, cuts: list[int]) -> None:
    """Where there are strides they select the same elements; where NumPy needs no copy there are strides."""
    array = np.arange(math.prod(shape)).reshape(shape).transpose(order.sample(range(len(shape)), len(shape)))
    new = [c for c in cuts if array.size % c == 0]
    while array.size % math.prod(new):
        new.pop()
    new = [*new, array.size // math.prod(new)]
    order.shuffle(new)
    found = reshaped_strides(array.shape, tuple(s // 8 for s in array.strides), tuple(new))
    expected = array.reshape(new)
    assert (found is not None) == np.shares_memory(expected, array)
    if found is not None:
        np.testing.assert_array_equal(as_strided(array, new, [8 * s for s in found]), expected)


def test_symbolic_reshapes() -> None:
    assert reshaped_strides((N, 6), (6, 1), (N, 2, 3)) == (6, 3, 1)
    assert reshaped_strides((N, 6), (6, 1), (6 * N,)) == (1,)
    assert reshaped_strides((N, 6), (1, N), (6 * N,)) is None

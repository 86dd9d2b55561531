"""TopK, Unique, NonZero, Compress, NonMaxSuppression."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from daceopt import ops
from daceopt.errors import DaceoptError, RunError
from daceopt.ir.interpreter.interpret import interpret
from daceopt.ir.scalar import types
from tests.autodiff.checking import check as check_gradient
from tests.libs.test_algorithms import boxes
from tests.ops.compiled import compiled
from tests.ops.single import check, lowered, reference, single

_INT64 = types.from_name("int64")
X = np.random.default_rng(1).integers(-3, 4, (3, 4, 5)).astype(np.float32)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def interpreted(op_type: str, inputs: list[Any], like: list[np.ndarray], **options: Any) -> list[np.ndarray]:
    graph, feeds = single(op_type, inputs, like=like, **options)
    found = interpret(lowered(graph), feeds)
    return [found[n] for n in graph.outputs]


# -------------------------------------------------------------------- TopK


@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "uint64"])
def test_top_k(largest: int, axis: int, dtype: str) -> None:
    x = X.astype(np.int64).astype(dtype)
    check("TopK", [x, ints(2)], outputs=2, constants=[1], largest=largest, axis=axis)
    check("TopK", [x, ints(3)], outputs=2, constants=[1], opset=24, largest=largest, axis=axis, sorted=0)


def test_top_k_of_older_opsets() -> None:
    check("TopK", [X, ints(3)], outputs=2, constants=[1], opset=10, axis=1)
    graph, feeds = single("TopK", [X], like=[X[..., :2], ints(0).repeat(24).reshape(3, 4, 2)], opset=9, k=2)
    found = interpret(lowered(graph), feeds)
    np.testing.assert_array_equal(found[graph.outputs[0]], torch.topk(torch.from_numpy(X), 2)[0])


def test_nan_is_the_largest() -> None:
    x = np.array([1, np.nan, 3, -np.inf, np.nan, np.inf], np.float32)
    for largest, order in ((1, [1, 4, 5, 2]), (0, [3, 0, 2, 5])):
        like = [x[:4], ints(*order)]
        found = interpreted("TopK", [x, ints(4)], like, constants=[1], largest=largest)
        np.testing.assert_array_equal(found[1], order)
        np.testing.assert_array_equal(found[0], x[order])


def test_compiled_top_k() -> None:
    inputs = [X.astype(np.float16), ints(3)]
    ours = compiled("TopK", inputs, outputs=2, constants=[1], axis=1)
    for value, expected in zip(ours, reference("TopK", inputs, 2, 23, axis=1), strict=True):
        np.testing.assert_array_equal(value, expected)


def test_more_than_there_are() -> None:
    graph, _ = single("TopK", [X[0, 0], ints(6)], constants=[1], like=[np.zeros(6, np.float32), ints(*range(6))])
    assert "k of 6 along an axis of 5" in str(ops.why_unsupported(graph, graph.operators()[0]))


def test_gradient_of_top_k() -> None:
    def build(b: Any, x: str) -> str:
        values, indices = b.graph.add_array("y", (3, 2), b.graph.dtype(x)), b.graph.add_array("y", (3, 2), _INT64)
        b.graph.add_operator("TopK", [x, b.constant(ints(2))], [values, indices], {"axis": 1})
        return str(values)

    check_gradient(build, lambda x: torch.topk(x, 2)[0], (3, 5))


# -------------------------------------------------------------------- Unique

UNIQUE: list[tuple[np.ndarray, dict[str, Any]]] = [
    (np.array([2, 1, 1, 3, 4, 3], np.float32), {}),
    (np.array([2, 1, 1, 3, 4, 3], np.int8), {"sorted": 0}),
    (np.array([[1, 0, 0], [1, 0, 0], [2, 3, 4]], np.float64), {"axis": 0}),
    (np.array([[1, 0, 1], [1, 2, 1], [2, 3, 2]], np.uint16), {"axis": -1}),
    (np.round(X[:, :, :2] / 3), {"axis": 1}),
    (X > 0, {}),
    (np.array([], np.int32), {}),
]


@pytest.mark.parametrize("x, attributes", UNIQUE)
def test_unique(x: np.ndarray, attributes: dict[str, Any]) -> None:
    check("Unique", [x], outputs=4, **attributes)


def test_distinct_columns_in_the_order_of_their_appearance() -> None:
    x = np.array([[5, 0, 5, 1], [1, 2, 1, 2]], np.int32)
    like = [np.zeros((2, 3), np.int32), np.zeros(3, np.int64), np.zeros(4, np.int64), np.zeros(3, np.int64)]
    found = interpreted("Unique", [x], like, axis=-1, sorted=0)
    assert [v.tolist() for v in found] == [[[5, 0, 1], [1, 2, 2]], [0, 1, 3], [0, 1, 0, 2], [2, 1, 1]]


def test_unique_in_another_number() -> None:
    with pytest.raises(DaceoptError, match=r"expected 2 results.*found 3"):
        interpreted("Unique", [np.array([3.0, 1.0, 2.0, 1.0])], [np.zeros(2)])


def test_unique_needs_to_know_how_many() -> None:
    graph, _ = single("Unique", [X[0, 0]], like=[X[0, 0], ints(0), ints(0), ints(0)])
    node = graph.operators()[0]
    assert ops.why_unsupported(graph, node) is None
    inverse = graph.add_array("inverse", (5,), _INT64)
    only = graph.add_operator("Unique", graph.inputs_of(node), [None, None, inverse], {})
    assert "inverse" in str(ops.why_unsupported(graph, only))


# -------------------------------------------------------------------- NonZero, Compress


@pytest.mark.parametrize("dtype", ["float32", "float64", "bool", "int8", "uint64", "int32"])
def test_nonzero(dtype: str) -> None:
    check("NonZero", [X.astype(np.int64).astype(dtype)])
    check("NonZero", [np.zeros((0, 2), dtype)])
    check("NonZero", [np.array([0, 1], dtype)])


CONDITION = np.array([True, False, True])
COMPRESS: list[tuple[np.ndarray, np.ndarray, dict[str, Any]]] = [
    (X, CONDITION, {"axis": 0}),
    (X, CONDITION, {"axis": 1}),
    (X, CONDITION, {"axis": -1}),
    (X.astype(np.int8), np.array([False, True] * 25), {}),
    (X > 0, np.zeros(4, np.bool_), {"axis": 1}),
]


@pytest.mark.parametrize("x, condition, attributes", COMPRESS)
def test_compress(x: np.ndarray, condition: np.ndarray, attributes: dict[str, Any]) -> None:
    check("Compress", [x, condition], **attributes)


def test_a_condition_longer_than_the_axis() -> None:
    found = interpreted("Compress", [X[:2], CONDITION], [X[:1]], axis=0)
    np.testing.assert_array_equal(found[0], X[:1])


def test_gradient_of_compress() -> None:
    def build(b: Any, x: str) -> str:
        y = b.graph.add_array("y", (2, 4), b.graph.dtype(x))
        b.graph.add_operator("Compress", [x, b.constant(CONDITION)], [y], {"axis": 0})
        return str(y)

    check_gradient(build, lambda x: x[torch.from_numpy(CONDITION)], (3, 4))


def test_compiled_with_a_declared_size() -> None:
    x = np.array([[1, 0], [1, -0.0]], np.float32)
    np.testing.assert_array_equal(_sized("NonZero", [x], (2, 2), np.int64), np.nonzero(x))
    half = X.astype(np.float16)
    np.testing.assert_array_equal(_sized("Compress", [half, CONDITION], (2, 4, 5), np.float16, axis=0), half[CONDITION])
    with pytest.raises(RunError, match=r"expected 3 results.*found 2"):
        _sized("NonZero", [x], (2, 3), np.int64)


def _sized(op_type: str, inputs: list[np.ndarray], shape: tuple[int, ...], dtype: Any, **attributes: Any) -> Any:
    """One compiled operator whose output is declared to have ``shape``."""
    return compiled(op_type, inputs, like=[np.zeros(shape, dtype)], **attributes)[0]


# -------------------------------------------------------------------- NonMaxSuppression


@pytest.mark.parametrize("centre", [0, 1])
@pytest.mark.parametrize("given", [0, 1, 2, 3])
def test_non_max_suppression(centre: int, given: int) -> None:
    scores = np.round(np.random.default_rng(2).uniform(size=(2, 3, 8)), 1).astype(np.float32)
    options = [ints(3), np.array([0.4], np.float32), np.array([0.5], np.float32)]
    inputs = [boxes(8, bool(centre)), scores, *options[:given]]
    # the reference evaluator wants the optional inputs
    filled = [*inputs, *[np.zeros(1, np.int64), np.zeros(1, np.float32)][given:]]
    expected = reference("NonMaxSuppression", filled, 1, 11, center_point_box=centre)
    found = interpreted("NonMaxSuppression", inputs, expected, opset=11, center_point_box=centre)
    np.testing.assert_array_equal(found[0], expected[0])


def test_overlap_at_the_threshold_stays() -> None:
    pair = np.array([[[0, 0, 1, 1], [0, 0, 1, 0.5]]], np.float32)
    inputs = [pair, np.array([[[0.9, 0.8]]], np.float32), ints(2), np.array([0.5], np.float32)]
    found = interpreted("NonMaxSuppression", inputs, [np.zeros((2, 3), np.int64)])
    assert found[0].tolist() == [[0, 0, 0], [0, 0, 1]]

"""Epilogue fusion: bias, residual and relu join the product that feeds them, only where the product does the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dace
import numpy as np
import pytest
import sympy
import torch

from daceopt.ir.graph.graph import Graph
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.nodes.library import Contraction, Convolution
from daceopt.ir.scalar import scalar, types
from daceopt.ir.text.render import render
from daceopt.ops.families.activation import relu
from daceopt.passes.transform import Site
from daceopt.transformations.local._epilogues import Epilogue, extract, reader_of
from daceopt.transformations.local.epilogue_fusion import EpilogueFusion
from daceopt.transformations.local.tasklet_fusion import TaskletFusion
from tests.transformations.lowered import F, apply, compiled, feeds, finish, misses, size_symbol, start

Shape = tuple[Any, ...]


REASONS = ("not a sum of", "scales no result", "neither a bias nor a residual", "no relu with a slope")


def product(*more: Shape, rows: Any = 3) -> tuple[Graph, Builder, str, list[str]]:
    """A product of shape (rows, 5), and inputs of the shapes ``more``."""
    graph, b, (x, y, *rest) = start((rows, 4), (4, 5), *more)
    return graph, b, b.matmul(x, y, alpha=0.5), rest


def image(*more: Shape) -> tuple[Graph, Builder, str, list[str]]:
    """A convolution of shape (2, 8, 5, 5), and inputs of the shapes ``more``."""
    graph, b, (x, w, *rest) = start((2, 3, 5, 5), (8, 3, 3, 3), *more)
    y = graph.add_array("y", (2, 8, 5, 5), F)
    b.library(Convolution, {"X": x, "W": w}, {"Y": y}, strides=[1, 1], pads=[1, 1, 1, 1], dilations=[1, 1], group=1)
    return graph, b, y, rest


def along(b: Builder, y: str, vector: str, axis: int, fn: Callable[[Any, Any], Any]) -> str:
    """``fn(y, vector)`` with the vector along one axis of ``y``."""
    shape = b.graph.shape(y)
    out = b.graph.add_array("z", shape, F)
    reads = {"p": (y, lambda *i: i), "v": (vector, lambda *i: (i[axis],))}
    b.map(shape, reads, {"out": (out, lambda *i: i)}, lambda i, p, v: fn(p, v))
    return out


def plus(u: Any, v: Any) -> Any:
    return u + v


def test_a_product_takes_everything() -> None:
    graph, b, y, (c, r) = product((5,), (3, 5))
    apply(EpilogueFusion(), finish(graph, b.elementwise(lambda p, u, v: relu(p + u + v), y, c, r)), special=True)
    assert (
        render(graph)
        == """graph test(x_1: float32[3, 4], x_2: float32[4, 5], x_3: float32[5], x_4: float32[3, 5]) -> k_6
  k_6: float32[3, 5] = library Contraction(A=x_1, B=x_2, Bias=x_3, C=x_4; activation="relu", alpha=0.5) called "k"
"""
    )
    (node,) = graph.nodes()
    assert isinstance(node, Contraction) and (node.alpha, node.activation) == (0.5, "relu")


def test_symbolic_rows_and_rows_of_one() -> None:
    for rows in (size_symbol(), 1):
        graph, b, y, (c,) = product((5,), rows=rows)
        apply(EpilogueFusion(), finish(graph, b.elementwise(plus, y, c)))
        assert not graph.kernels()


def test_a_convolution_takes_bias_and_residual() -> None:
    graph, b, y, (c, r) = image((8,), (2, 8, 5, 5))
    biased = along(b, y, c, 1, plus)
    finish(graph, b.elementwise(plus, biased, r))
    TaskletFusion().run(graph)
    apply(EpilogueFusion(), graph)
    (node,) = graph.nodes()
    assert set(graph.reads(node)) == {"X", "W", "B", "Z"} and node.activation is None


@pytest.mark.parametrize(
    "form",
    [
        lambda v: scalar.maximum(v, 0),
        lambda v: scalar.select(scalar.le(v, 0), 0, v),
        lambda v: scalar.select(scalar.lt(v, 0), 0, v),
    ],
)
def test_forms_of_relu(form: Callable[[Any], Any]) -> None:
    graph, b, y, (c,) = product((5,))
    apply(EpilogueFusion(), finish(graph, b.elementwise(lambda p, v: form(p + v), y, c)), special=True)
    assert graph.nodes()[0].activation == "relu"


@pytest.mark.parametrize(
    "form",
    [
        lambda v: scalar.select(scalar.gt(v, 0), v, 0),  # NaN becomes 0
        lambda v: scalar.select(scalar.le(v, 0), v, 0),
        lambda v: scalar.select(scalar.le(v, 1), 0, v),
        lambda v: scalar.select(scalar.gt(v, 0), v, 0.1 * v),  # products have no such epilogue
        lambda v: scalar.maximum(v, 1),
        lambda v: scalar.minimum(v, 0),
        lambda v: 2 * v,
        lambda v: v + 1,
        lambda v: -v,
    ],
)
def test_what_is_no_epilogue(form: Callable[[Any], Any]) -> None:
    graph, b, y, (c,) = product((5,))
    outcome = apply(EpilogueFusion(), finish(graph, b.elementwise(lambda p, v: form(p + v), y, c)), special=True)
    assert any(m in misses(outcome) for m in REASONS)


@pytest.mark.parametrize(
    ("form", "slope"),
    [
        (lambda v: scalar.select(scalar.gt(v, 0), v, 0.1 * v), 0.1),
        (lambda v: scalar.cast(scalar.select(scalar.gt(v, 0), v, 0.1 * v), dace.float32), 0.1),
        (lambda v: scalar.select(scalar.gt(v, 0), v, 3 * v), 3),
        (lambda v: scalar.select(scalar.gt(v, 0), v, -0.1 * v), None),
        (lambda v: scalar.select(scalar.gt(v, 0), v, 1e-60 * v), None),  # 0 in float32
        (lambda v: scalar.select(scalar.ge(v, 0), v, 0.1 * v), None),  # -0 would keep its sign
        (lambda v: scalar.select(scalar.gt(v, 0), 0.1 * v, v), None),
        (lambda v: scalar.select(scalar.gt(v, 0.5), v, 0.1 * v), None),
        (lambda v: scalar.select(scalar.gt(v, 0), v, 0.1 * v * v), None),
        (
            lambda v: scalar.cast(scalar.cast(scalar.select(scalar.gt(v, 0), v, 0.1 * v), dace.int32), dace.float32),
            None,
        ),
    ],
)
def test_forms_of_leaky_relu(form: Callable[[Any], Any], slope: float | None) -> None:
    """Scaled and shifted before; a number is multiplied with each term of the sum."""
    graph, b, y, (s, t) = image((8, 1, 1), (8, 1, 1))
    apply(EpilogueFusion(), finish(graph, b.elementwise(lambda p, u, v: form(p * u + v), y, s, t)), special=True)
    (node,) = (n for n in graph.nodes() if isinstance(n, Convolution))
    found = None if node.activation is None else node.slope
    assert found == slope and (slope is None or set(graph.reads(node)) == {"X", "W", "S", "T"})


@pytest.mark.parametrize(
    ("form", "ceiling"),
    [
        (lambda v: scalar.minimum(scalar.maximum(v, 0), 6), 6),
        (lambda v: scalar.maximum(scalar.minimum(6, v), 0), 6),
        (lambda v: scalar.select(scalar.ge(v, 6), 6, scalar.select(scalar.le(v, 0), 0, v)), 6),
        (lambda v: scalar.select(scalar.le(scalar.minimum(v, 2.5), 0), 0, scalar.minimum(v, 2.5)), 2.5),
        (lambda v: scalar.minimum(v, 6), None),
        (lambda v: scalar.minimum(scalar.maximum(v, 0), -1), None),
        (lambda v: scalar.minimum(scalar.maximum(v, 0), sympy.oo), None),
        (lambda v: scalar.select(scalar.ge(v, 6), 5, scalar.maximum(v, 0)), None),
        (lambda v: scalar.select(scalar.ge(v + 1, 6), 6, scalar.maximum(v, 0)), None),
        (lambda v: scalar.select(scalar.le(v, 6), 6, scalar.maximum(v, 0)), None),
        (lambda v: scalar.minimum(scalar.select(scalar.gt(v, 0), v, 0.1 * v), 6), None),  # has a slope, too
    ],
)
def test_forms_of_relu6(form: Callable[[Any], Any], ceiling: float | None) -> None:
    """What one may be; that of oneDNN goes into convolutions by ``relu-absorption``."""
    graph, b, y, (s, t) = image((8, 1, 1), (8, 1, 1))
    finish(graph, b.elementwise(lambda p, u, v: form(p * u + v), y, s, t))
    (node,) = (n for n in graph.nodes() if isinstance(n, Convolution))
    found = extract(graph, node, reader_of(graph, node))
    is_relu = isinstance(found, Epilogue) and found.activation == "relu"
    assert (found.ceiling if is_relu else None) == ceiling  # type: ignore[union-attr]


@pytest.mark.parametrize("dtype", [dace.float64, types.BFLOAT16])
def test_leaky_relus_are_for_what_onednn_computes(dtype: Any) -> None:
    """With other types their library would have to be Python's."""
    graph = Graph("narrow")
    b = Builder(graph)
    x, w = graph.add_input("x", (2, 3, 6, 6), dtype), graph.add_input("w", (4, 3, 3, 3), dtype)
    y = graph.add_array("y", (2, 4, 4, 4), dtype)
    graph.add_node(Convolution(), {"X": x, "W": w}, {"Y": y})
    graph.add_output(b.elementwise(lambda v: scalar.select(scalar.gt(v, 0), v, 0.1 * v), y))
    assert not [s for s in EpilogueFusion().match(graph) if isinstance(s, Site)]


@pytest.mark.parametrize(("axis", "reason"), [(0, "neither a bias"), (1, None)])
def test_the_axis_of_a_bias(axis: int, reason: str | None) -> None:
    graph, b, (x, y, c) = start((5, 4), (4, 5), (5,))
    outcome = apply(EpilogueFusion(), finish(graph, along(b, b.matmul(x, y), c, axis, plus)))
    assert reason is None or reason in misses(outcome)


def test_a_vector_along_the_last_axis_is_no_bias_of_a_convolution() -> None:
    graph, b, y, (c,) = image((5,))
    assert "neither a bias nor a residual" in misses(apply(EpilogueFusion(), finish(graph, along(b, y, c, 3, plus))))


def test_a_residual_of_another_shape() -> None:
    graph, b, y, (r,) = product((3, 1))
    assert "neither a bias nor a residual" in misses(apply(EpilogueFusion(), finish(graph, b.elementwise(plus, y, r))))


def test_a_transposed_residual() -> None:
    graph, b, (x, y, r) = start((5, 4), (4, 5), (5, 5))
    out = graph.add_array("z", (5, 5), F)
    reads = {"p": (b.matmul(x, y), lambda i, j: (i, j)), "v": (r, lambda i, j: (j, i))}
    b.map((5, 5), reads, {"out": (out, lambda i, j: (i, j))}, lambda i, p, v: p + v)
    assert "neither a bias nor a residual" in misses(apply(EpilogueFusion(), finish(graph, out)))


def test_two_biases() -> None:
    graph, b, y, (c, d) = product((5,), (5,))
    outcome = apply(EpilogueFusion(), finish(graph, b.elementwise(lambda p, u, v: p + u + v, y, c, d)))
    assert "neither a bias nor a residual" in misses(outcome)


def test_a_term_that_is_the_position() -> None:
    graph, b, y, _ = product()
    out = graph.add_array("z", (3, 5), F)
    b.map((3, 5), {"p": (y, lambda *i: i)}, {"out": (out, lambda *i: i)}, lambda i, p: p + i[1])
    assert "neither a bias nor a residual" in misses(apply(EpilogueFusion(), finish(graph, out)))


def truncated(b: Builder, y: str, c: str) -> str:
    return b.elementwise(plus, b.elementwise(lambda v: v, y, dtype=dace.int32), c, dtype=F)


def with_doubles(b: Builder, y: str, c: str) -> str:
    return b.elementwise(plus, y, b.graph.add_constant("c", np.arange(5.0) + 1e-9), dtype=F)


@pytest.mark.parametrize("build", [truncated, with_doubles])
def test_mixed_element_types(build: Callable[..., str]) -> None:
    graph, b, y, (c,) = product((5,))
    finish(graph, build(b, y, c))
    TaskletFusion().run(graph)
    assert "mixes element types" in misses(apply(EpilogueFusion(), graph))


@pytest.mark.parametrize(
    "reader",
    [
        lambda b, y: b.reduce("sum", None, y, axes=[1]),
        lambda b, y: b.elementwise(lambda v: v, y, dtype=dace.float64),
        lambda b, y: b.elementwise(lambda u: (u, u + 1), y)[0],
    ],
)
def test_readers_that_reduce_convert_or_write_more(reader: Callable[[Builder, str], str]) -> None:
    graph, b, y, _ = product()
    assert "the reader" in misses(EpilogueFusion().run(finish(graph, reader(b, y))))


def test_views_and_other_readers() -> None:
    graph, b, y, (r,) = product((5, 3))
    outcome = apply(EpilogueFusion(), finish(graph, b.elementwise(plus, b.transpose(y, [1, 0]), r)))
    assert "read through a view" in misses(outcome)
    graph, b, y, (c,) = product((5,))
    assert apply(EpilogueFusion(), finish(graph, b.elementwise(plus, y, c), y)).sites == []


def test_relu_of_nan_is_nan_compiled() -> None:
    """PyTorch's relu keeps NaN; oneDNN's, as part of a convolution, does not, so it is not used there."""
    graph, b, y, _ = image()
    convolved = finish(graph, b.elementwise(relu, y))
    outcome = apply(EpilogueFusion(), convolved, special=True)
    assert "would turn NaN into 0" in misses(outcome)
    graph, b, y, (c,) = product((5,))
    multiplied = finish(graph, b.elementwise(lambda p, v: relu(p + v), y, c))
    assert apply(EpilogueFusion(), multiplied, special=True).sites
    (first,), (second,) = compiled("relu of NaN", [convolved, multiplied], special=True)
    x, w = (torch.tensor(v) for v in feeds(convolved, special=True).values())
    expected = torch.relu(torch.nn.functional.conv2d(x, w, padding=1)).numpy()
    assert np.isnan(expected).any() and np.array_equal(np.isnan(first), np.isnan(expected))
    x, w, c_value = (torch.tensor(v) for v in feeds(multiplied, special=True).values())
    assert np.array_equal(np.isnan(second), torch.relu(0.5 * x @ w + c_value).isnan().numpy())


def test_a_product_keeps_out_of_an_image_whose_channels_are_innermost() -> None:
    graph, b, (x, y, r) = start((2, 8, 5, 3), (3, 4), (2, 8, 5, 4))
    out = graph.add_array("z", (2, 8, 5, 4), F, (160, 1, 32, 8))
    total = b.elementwise(lambda u, v: u + v, b.matmul(x, y), r, out=out)
    outcome = apply(EpilogueFusion(), finish(graph, total))
    assert not outcome.sites and "has other strides than" in str(misses(outcome))

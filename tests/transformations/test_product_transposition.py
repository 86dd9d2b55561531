"""Product transposition: the copy of a transposed product becomes the product of the transposes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dace
import pytest

from daceopt.ir.graph.graph import Graph
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.nodes.library import Contraction
from daceopt.ir.text.render import render
from daceopt.transformations.local.product_transposition import ProductTransposition
from tests.transformations.lowered import F, apply, finish, size_symbol, start


def test_a_copied_transpose() -> None:
    graph, b, (x, y) = start((3, 4), (4, 5))
    apply(ProductTransposition(), finish(graph, b.copy(b.transpose(b.matmul(x, y, alpha=0.5), [1, 0]))), special=True)
    assert (
        render(graph)
        == """graph test(x_1: float32[3, 4], x_2: float32[4, 5]) -> k_5
  transposed_6: float32[5, 4] = view x_2 strides [1, 5] offset 0
  transposed_7: float32[4, 3] = view x_1 strides [1, 4] offset 0
  k_5: float32[5, 3] = library Contraction(A=transposed_6, B=transposed_7; alpha=0.5) called "k"
"""
    )
    assert graph.nodes()[0].alpha == 0.5


@pytest.mark.parametrize(
    ("a", "b_shape"),
    [
        ((2, 3, 4), (2, 4, 5)),
        ((2, 3, 4), (4, 3)),
        ((size_symbol(), 4), (4, 5)),
        ((3, 3), (3, 3)),
        ((1, 2, 3, 4), (5, 1, 4, 2)),
    ],
)
def test_batches_and_symbols(a: tuple[Any, ...], b_shape: tuple[Any, ...]) -> None:
    graph, b, (x, y) = start(a, b_shape)
    product = b.matmul(x, y)
    rank = len(graph.shape(product))
    turned = b.transpose(product, [*range(rank - 2), rank - 1, rank - 2])
    outcome = apply(ProductTransposition(), finish(graph, b.copy(turned)))
    assert len(outcome.sites) == 1 and not graph.kernels()


def broadcast_row(b: Builder, product: str) -> str:
    row = b.slice(product, [0], [1], [1], [0])
    return b.copy(b.expand(b.transpose(row, [1, 0]), (3, 3)))


@pytest.mark.parametrize(
    "reader",
    [
        lambda b, p: b.copy(p),
        lambda b, p: b.copy(b.slice(b.transpose(p, [1, 0]), [0], [2], [1], [0])),
        lambda b, p: b.copy(b.slice(b.transpose(p, [1, 0]), [2], [-1], [-1], [0])),
        lambda b, p: b.elementwise(lambda v: v + 1, b.transpose(p, [1, 0])),
        lambda b, p: b.elementwise(lambda v: v, b.transpose(p, [1, 0]), dtype=dace.float64),
        lambda b, p: b.elementwise(lambda u, v: u + v, p, b.transpose(p, [1, 0])),
        lambda b, p: b.reduce("sum", None, b.transpose(p, [1, 0]), axes=[0]),
        broadcast_row,
    ],
)
def test_readers_that_do_something_else(reader: Callable[[Builder, str], str]) -> None:
    graph, b, (x, y) = start((3, 4), (4, 3))
    assert apply(ProductTransposition(), finish(graph, reader(b, b.matmul(x, y)))).sites == []


def two_readers(graph: Graph, b: Builder, product: str) -> Graph:
    return finish(graph, b.copy(b.transpose(product, [1, 0])), b.elementwise(lambda v: v + 1, product))


def an_output(graph: Graph, b: Builder, product: str) -> Graph:
    return finish(graph, b.copy(b.transpose(product, [1, 0])), product)


@pytest.mark.parametrize("build", [two_readers, an_output])
def test_products_that_somebody_else_needs(build: Callable[..., Graph]) -> None:
    graph, b, (x, y) = start((3, 4), (4, 3))
    assert apply(ProductTransposition(), build(graph, b, b.matmul(x, y))).sites == []


def test_only_the_last_two_dimensions() -> None:
    graph, b, (x, y) = start((3, 3, 4), (3, 4, 3))
    turned = b.transpose(b.matmul(x, y), [1, 0, 2])
    assert apply(ProductTransposition(), finish(graph, b.copy(turned))).sites == []


def test_products_that_are_parts_stay_where_they_are() -> None:
    """The sole reader of the whole reads the part of the other product."""
    graph, b, (x, w) = start((4, 3), (3, 6))
    whole = graph.add_array("whole", (8, 6), F)
    for k in (0, 4):
        y = graph.add_part(whole, "p", [k, 0], [4, 6])
        b.library(Contraction, {"A": x, "B": w}, {"Y": y}, alpha=1.0 + k)
    finish(graph, b.copy(b.transpose(b.slice(whole, [0], [4], axes=[0]), (1, 0))))
    assert ProductTransposition().run(graph).sites == []

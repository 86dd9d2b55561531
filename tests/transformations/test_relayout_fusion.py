"""Relayout fusion: products stand in memory as they are copied; what stands there already is not copied."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from daceopt.ir.graph.graph import Graph
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.nodes.library import Contraction
from daceopt.ir.text.render import render
from daceopt.transformations.local.relayout_fusion import RelayoutFusion
from tests.transformations.derivatives import assert_same_gradients
from tests.transformations.lowered import BATCH, apply, finish, misses, size_symbol, start

HEADS = ((2, 3, 4, 5), (2, 3, 5, 6))  # of the two factors: (batch, heads, rows, columns)


def heads_side_by_side(b: Builder, product: str) -> str:
    batch, heads, rows, size = b.graph.shape(product)
    return b.reshape(b.transpose(product, [0, 2, 1, 3]), (batch, rows, heads * size))


def test_heads_of_attention() -> None:
    graph, b, (x, y) = start(*HEADS)
    finish(graph, b.elementwise(lambda v: v + 1, heads_side_by_side(b, b.matmul(x, y))))
    before = graph.copy()
    assert len(apply(RelayoutFusion(), graph, special=True).sites) == 1
    assert render(graph) == (
        "graph test(x_1: float32[2, 3, 4, 5], x_2: float32[2, 3, 5, 6]) -> k_7\n"
        '  k_3: float32[2, 3, 4, 6] strides [72, 6, 18, 1] = library Contraction(A=x_1, B=x_2) called "k"\n'
        "  relayout_8: float32[2, 4, 3, 6] = view k_3 strides [72, 18, 6, 1] offset 0\n"
        "  k_6: float32[2, 4, 18] = view relayout_8 strides [72, 18, 1] offset 0\n"
        "  k_7: float32[2, 4, 18] = kernel k\n"
        "    s0(i0 < 2, i1 < 4, i2 < 18):\n"
        "      in0 <- k_6[i0, i1, i2]\n"
        "      out0: float32 = in0 + 1\n"
        "      out0 -> k_7[i0, i1, i2]\n"
    )
    assert_same_gradients(before, graph)


def test_a_size_that_is_known_when_running() -> None:
    n = size_symbol()
    graph, b, (x, y) = start((n, 3, 4, 5), (n, 3, 5, 6))
    finish(graph, b.elementwise(lambda v: v + 1, heads_side_by_side(b, b.matmul(x, y))))
    assert len(apply(RelayoutFusion(), graph).sites) == 1 and len(graph.kernels()) == 1
    assert BATCH == 3


def test_grouped_heads_are_two_axes_of_the_product() -> None:
    graph, b, (x, y) = start((2, 2, 3, 4, 5), (2, 2, 1, 5, 6))
    finish(graph, b.elementwise(lambda v: v + 1, heads_side_by_side(b, b.reshape(b.matmul(x, y), (2, 6, 4, 6)))))
    before = graph.copy()
    assert len(apply(RelayoutFusion(), graph).sites) == 1
    assert_same_gradients(before, graph)


def test_columns_may_come_first() -> None:
    graph, b, (x, y) = start((2, 3, 4), (2, 4, 5))
    finish(graph, b.elementwise(lambda v: v + 1, b.copy(b.transpose(b.matmul(x, y), [0, 2, 1]))))
    assert len(apply(RelayoutFusion(), graph).sites) == 1
    assert render(graph).count("float32[2, 3, 5] strides [15, 1, 3] = library Contraction") == 1


def test_a_copy_beside_a_sum() -> None:
    """The gradient of a bias: what goes on to the product is what came."""
    graph, b, (x, y) = start((4, 5), (5, 6))
    product = b.matmul(x, y)
    twin, total = graph.add_array("twin", (4, 6), graph.dtype(x)), graph.add_array("total", (6,), graph.dtype(x))
    both = {"twin": (twin, lambda *i: i), "total": (total, lambda *i: (i[1],), "sum")}
    b.map((4, 6), {"v": (product, lambda *i: i)}, both, lambda i, v: {"twin": v, "total": v * v})
    finish(graph, b.elementwise(lambda v: v + 1, twin), total)
    assert len(apply(RelayoutFusion(), graph).sites) == 1
    assert all(twin not in graph.outputs_of(n) for n in graph.nodes())


def test_an_array_that_stands_in_memory_as_it_is_copied() -> None:
    graph, b, (x,) = start((2, 3, 4))
    turned = b.elementwise(lambda v: v + 1, x)
    graph.set_strides(turned, (12, 1, 3))
    finish(graph, b.elementwise(lambda v: v * 2, b.copy(b.transpose(turned, [0, 2, 1]))))
    assert len(apply(RelayoutFusion(), graph).sites) == 1 and len(graph.kernels()) == 2


def test_a_copy_that_is_a_result_is_written_by_the_kernel_that_it_is_from() -> None:
    """As images in groups of channels become images again; who reads the groups reads on."""
    graph, b, (x,) = start((2, 3, 4, 5))
    grouped = b.elementwise(lambda v: v + 1, x)
    whole, rest = b.copy(b.reshape(grouped, (2, 12, 5))), b.elementwise(lambda v: v * v, grouped)
    finish(graph, whole, rest)
    before = graph.copy()
    assert len(apply(RelayoutFusion(), graph, special=True).sites) == 1
    assert f"out0 -> {whole}[i0, 4*i1 + i2, i3]" in render(graph) and len(graph.kernels()) == 2
    assert_same_gradients(before, graph)


@pytest.mark.parametrize("added", [(), ("row",), ("row", "rows")], ids=["bare", "bias", "bias and residual"])
def test_a_product_writes_the_result_that_counts_its_rows_by_several_axes(added: tuple[str, ...]) -> None:
    graph, b, (x, y, row, rows) = start((6, 4), (4, 5), (5,), (6, 5))
    operands = {"A": x, "B": y} | {
        c: n for c, n in {"Bias": row, "C": rows}.items() if {row: "row", rows: "rows"}[n] in added
    }
    product = graph.add_array("product", (6, 5), graph.dtype(x))
    b.library(Contraction, operands, {"Y": product})
    finish(graph, b.copy(b.reshape(product, (2, 3, 5))), b.elementwise(lambda v: v + 1, product))
    before = graph.copy()
    assert len(apply(RelayoutFusion(), graph, special=True).sites) == 1
    (node,) = (n for n in graph.nodes() if isinstance(n, Contraction))
    assert graph.outputs_of(node) == graph.outputs[:1] and len(graph.kernels()) == 1
    assert_same_gradients(before, graph)


def test_a_product_of_another_form_is_copied() -> None:
    for rows, shape in (((2, 6, 4), (2, 2, 3, 5)), ((6, 4), (6, 5, 1)), ((6, 4), (30,))):
        graph, b, (x, y) = start(rows, (4, 5))
        finish(graph, b.copy(b.reshape(b.matmul(x, y), shape)))
        assert not apply(RelayoutFusion(), graph).sites


def test_a_result_whose_axes_the_source_has_as_one_stays_a_copy() -> None:
    graph, b, (x,) = start((2, 12))
    finish(graph, b.copy(b.reshape(b.elementwise(lambda v: v + 1, x), (2, 3, 4))))
    assert apply(RelayoutFusion(), graph).sites == []


@pytest.mark.parametrize(
    "copied",
    [
        lambda b, p: b.copy(b.slice(p, [0], [1], [1], [0])),
        lambda b, p: b.copy(b.slice(p, [3], [-1], [-1], [2])),
        lambda b, p: b.copy(b.expand(b.unsqueeze(p, [0]), (2, *b.graph.shape(p)))),
        lambda b, p: b.elementwise(lambda v: v + 0.5, b.transpose(p, [0, 2, 1])),
    ],
)
def test_what_is_no_copy_of_the_whole(copied: Callable[[Builder, str], str]) -> None:
    graph, b, (x, y) = start((2, 3, 5), (2, 5, 4))
    finish(graph, b.elementwise(lambda v: v * v, copied(b, b.matmul(x, y))))
    assert apply(RelayoutFusion(), graph).sites == []


def an_output_as_well(graph: Graph, b: Builder, product: str) -> Graph:
    return finish(graph, b.elementwise(lambda v: v + 1, heads_side_by_side(b, product)), product)


def a_copy_that_is_an_output(graph: Graph, b: Builder, product: str) -> Graph:
    return finish(graph, b.copy(b.transpose(product, [0, 2, 1, 3])))


def rows_and_columns_outermost(graph: Graph, b: Builder, product: str) -> Graph:
    return finish(graph, b.elementwise(lambda v: v + 1, b.copy(b.transpose(product, [2, 3, 0, 1]))))


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (an_output_as_well, "must stand in memory as it does"),
        (a_copy_that_is_an_output, "must be an array of its own"),
        (rows_and_columns_outermost, "neither rows nor columns"),
    ],
)
def test_near_misses(build: Callable[..., Graph], reason: str) -> None:
    graph, b, (x, y) = start(*HEADS)
    assert reason in misses(apply(RelayoutFusion(), build(graph, b, b.matmul(x, y))))


@pytest.mark.parametrize(("heads", "copies"), [((2, 3), 0), ((3, 2), 0)])
def test_two_orders_of_one_product(heads: tuple[int, int], copies: int) -> None:
    """Readers of the first copy read whatever the second asks for, where a view can be that."""
    graph, b, (x, y) = start((*heads, 4, 5), (*heads, 5, 6))
    product = b.matmul(x, y)
    orders = [b.copy(b.transpose(product, order)) for order in ([0, 2, 1, 3], [1, 0, 2, 3])]
    finish(graph, *(b.elementwise(lambda v: v + 1, c) for c in orders))
    apply(RelayoutFusion(), graph)
    assert len(graph.kernels()) == 2 + copies


def test_a_reader_that_merges_axes_holds_the_order() -> None:
    graph, b, (x, y) = start((2, 3, 4, 5), (2, 3, 5, 6))
    product = b.matmul(x, y)
    merged = b.reshape(product, (6, 4, 6))
    finish(graph, b.elementwise(lambda v: v + 1, heads_side_by_side(b, product)), b.elementwise(lambda v: v, merged))
    assert "cannot follow" in misses(apply(RelayoutFusion(), graph))

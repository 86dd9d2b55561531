"""Einsums become products where nothing is copied, and take in the transpositions around them."""

from __future__ import annotations

import numpy as np
import pytest

from daceopt.ir.graph.graph import Graph
from daceopt.transformations.coarse.attention_lifting import AttentionLifting
from daceopt.transformations.coarse.einsum_lifting import EinsumLifting
from daceopt.transformations.coarse.vertical_einsum_fusion import VerticalEinsumFusion
from tests.transformations.derivatives import assert_same_gradients
from tests.transformations.graphs import Net, check, near_misses, op_types

SIZES = dict(zip("bhijdklm", (2, 3, 4, 5, 6, 3, 4, 2), strict=True))


def contraction(equation: str) -> tuple[Net, str]:
    terms, result = equation.split("->")
    shapes = [tuple(SIZES[c] for c in t) for t in (*terms.split(","), result)]
    net = Net(opset=23, **{f"x{k}": s for k, s in enumerate(shapes[:-1])})
    operands = [getattr(net, f"x{k}") for k in range(len(shapes) - 1)]
    return net, net.op("Einsum", *operands, shape=shapes[-1], equation=equation)


def graph_of(equation: str) -> Graph:
    net, y = contraction(equation)
    return net.done(y)


@pytest.mark.parametrize(
    ("equation", "expected"),
    [
        ("ij,jk->ik", ["MatMul"]),
        ("bij,bjk->bik", ["MatMul"]),
        ("ji,jk->ik", ["Transpose", "MatMul"]),
        ("ij,jk->ki", ["MatMul", "Transpose"]),
        ("bihd,bjhd->bhij", ["Transpose", "Transpose", "MatMul"]),
        ("bhij,bjhd->bihd", ["Transpose", "MatMul", "Transpose"]),
        ("bid,dkl->bikl", ["Reshape", "Reshape", "MatMul", "Reshape"]),
        ("bij,ijk->bk", ["Reshape", "Reshape", "MatMul"]),
    ],
)
def test_products(equation: str, expected: list[str]) -> None:
    graph = graph_of(equation)
    before = graph.copy()
    check(EinsumLifting(), graph, expected)
    assert_same_gradients(before, graph)


@pytest.mark.parametrize(
    ("equation", "reason"),
    [
        ("ij,ij->ij", "nothing is summed"),
        ("ij,j->i", "an operand is no matrix"),
        ("ijk,jl->il", "summed on its own"),
        ("bji,kj->kbi", "'bji' of 'bji,kj->kbi' would be copied"),
        ("bid,djk->bjik", "'bjik' of 'bid,djk->bjik' would be copied"),
    ],
)
def test_what_stays(equation: str, reason: str) -> None:
    assert reason in near_misses(EinsumLifting(), graph_of(equation))


@pytest.mark.parametrize("equation", ["ij->ji", "ij,jk,kl->il"])
def test_other_numbers_of_operands(equation: str) -> None:
    assert EinsumLifting().run(graph_of(equation)).sites == []


def test_broadcast_and_diagonal_labels_stay() -> None:
    net = Net(x=(4, 1), z=(5, 3))
    graph = net.done(net.op("Einsum", net.x, net.z, shape=(4, 3), equation="ij,jk->ik"))
    assert "a label stands for two extents" in near_misses(EinsumLifting(), graph)
    net = Net(x=(4, 4), z=(4, 3))
    graph = net.done(net.op("Einsum", net.x, net.z, shape=(3,), equation="ii,ik->k"))
    assert "twice in an operand" in near_misses(EinsumLifting(), graph)


def test_integers_are_no_product_of_a_library() -> None:
    net = Net()
    x = net.const(np.ones((3, 4)), np.int64)
    graph = net.done(net.op("Einsum", x, net.const(np.ones((4, 5)), np.int64), shape=(3, 5), equation="ij,jk->ik"))
    assert "int64 is no product" in near_misses(EinsumLifting(), graph)


def test_attention_in_einsums() -> None:
    """Lifted, they are what a pattern of products knows."""
    net = Net(q=(2, 5, 3, 8), k=(2, 4, 3, 8), v=(2, 4, 3, 8), opset=23)
    scores = net.op("Einsum", net.q, net.k, shape=(2, 3, 5, 4), equation="bihd,bjhd->bhij")
    weights = net.op("Softmax", net.op("Mul", scores, net.const(8**-0.5)), axis=-1)
    graph = net.done(net.op("Einsum", weights, net.v, shape=(2, 5, 3, 8), equation="bhij,bjhd->bihd"))
    EinsumLifting().run(graph)
    assert len(AttentionLifting().run(graph).sites) == 1
    graph.validate()
    assert [t for t in op_types(graph) if t != "Transpose"] == ["Attention"]


# -------------------------------------------------------------------- chains


def chain(kind: str) -> Graph:
    net = Net(x=(4, 3), z=(4, 5), w=(5, 6))
    if kind == "before":
        t = net.op("Transpose", net.x, shape=(3, 4), perm=[1, 0])
        return net.done(net.op("Einsum", t, net.z, shape=(3, 5), equation="ki,ij->kj"))
    if kind == "second":
        t = net.op("Transpose", net.z, shape=(5, 4), perm=[1, 0])
        return net.done(net.op("Einsum", net.x, t, shape=(3, 5), equation="ik,ji->kj"))
    if kind == "after":
        y = net.op("Einsum", net.x, net.z, shape=(3, 5), equation="ik,ij->kj")
        return net.done(net.op("Transpose", y, shape=(5, 3), perm=[1, 0]))
    y = net.op("Einsum", net.x, net.z, shape=(3, 5), equation="ik,ij->kj")
    return net.done(net.op("Einsum", y, net.w, shape=(3, 6), equation="kj,jl->kl"))


@pytest.mark.parametrize("kind", ["before", "second", "after"])
def test_transpositions_join(kind: str) -> None:
    graph = chain(kind)
    before = graph.copy()
    check(VerticalEinsumFusion(), graph, ["Einsum"])
    assert_same_gradients(before, graph)


def test_golden() -> None:
    graph = chain("before")
    VerticalEinsumFusion().run(graph)
    (node,) = graph.operators()
    assert graph.inputs_of(node) == graph.inputs[:2] and node.attribute("equation") == "ik,ij->kj"


def test_products_join_on_request() -> None:
    assert "with products=True both become one" in near_misses(VerticalEinsumFusion(), chain("products"))
    check(VerticalEinsumFusion(products=True), chain("products"), ["Einsum"])


def test_sums_join() -> None:
    net = Net(x=(4, 3, 2), z=(4, 5))
    t = net.op("Einsum", net.x, shape=(3, 4), equation="ijk->ji")
    check(VerticalEinsumFusion(), net.done(net.op("Einsum", t, net.z, shape=(3, 5), equation="ji,ik->jk")), ["Einsum"])


def test_a_product_on_the_right_keeps_its_order() -> None:
    net = Net(x=(4, 3), z=(4, 5), w=(6, 3))
    y = net.op("Einsum", net.x, net.z, shape=(3, 5), equation="ik,ij->kj")
    graph = net.done(net.op("Einsum", net.w, y, shape=(6, 5), equation="lk,kj->lj"))
    assert "in another order" in near_misses(VerticalEinsumFusion(products=True), graph)


def test_what_others_read_stays() -> None:
    net = Net(x=(4, 3), z=(4, 5))
    y = net.op("Einsum", net.x, net.z, shape=(3, 5), equation="ik,ij->kj")
    graph = net.done(net.op("Transpose", y, shape=(5, 3), perm=[1, 0]), net.op("Relu", y))
    assert "has another user" in near_misses(VerticalEinsumFusion(), graph)


def test_diagonals_stay() -> None:
    net = Net(x=(4, 4), z=(4, 5))
    t = net.op("Transpose", net.x, shape=(4, 4), perm=[1, 0])
    graph = net.done(net.op("Einsum", t, net.z, shape=(4, 5), equation="ii,ij->ij"))
    assert "a diagonal is taken" in near_misses(VerticalEinsumFusion(), graph)

"""Attention reads shared heads where they are, instead of copies of them."""

from __future__ import annotations

import numpy as np
import pytest

from daceopt.ir.text.render import render
from daceopt.transformations.coarse.attention_lifting import AttentionLifting
from daceopt.transformations.coarse.grouped_query_lifting import GroupedQueryLifting
from tests.transformations.derivatives import assert_same_gradients
from tests.transformations.graphs import Net, near_misses, op_types
from tests.transformations.lowered import apply

B, KV, G, S, D = 2, 2, 3, 4, 8
HEADS = (B, KV * G, S, D)


def grouped_net(opset: int = 23) -> Net:
    return Net(q=HEADS, k=(B, KV, S, D), v=(B, KV, S, D), m=(B, 1, S, S), opset=opset)


def repeated(net: Net, x: str, tiled: bool = False, times: int = G, by_reshape: bool = False) -> str:
    """Each head ``times`` in turn; ``tiled``: all heads in turn, ``times`` times."""
    one, axis = ((B, 1, KV, S, D), 1) if tiled else ((B, KV, 1, S, D), 2)
    form = ("Reshape", one) if by_reshape else ("Unsqueeze", [axis])
    column = net.op(form[0], x, net.const(form[1], np.int64), shape=one)
    wide = tuple(times if k == axis else n for k, n in enumerate(one))
    copies = net.op("Expand", column, net.const(wide, np.int64), shape=wide)
    shape = (B, KV * times, S, D)
    return net.op("Reshape", copies, net.const(shape, np.int64), shape=shape)


def attention(net: Net, k: str, v: str, mask: bool = True) -> str:
    return net.op("Attention", net.q, k, v, net.m if mask else None, shape=HEADS, scale=0.25)


@pytest.mark.parametrize("mask", [True, False])
@pytest.mark.parametrize("by_reshape", [True, False])
def test_shared_heads(mask: bool, by_reshape: bool) -> None:
    net = grouped_net()
    k, v = (repeated(net, x, by_reshape=by_reshape) for x in (net.k, net.v))
    graph = net.done(attention(net, k, v, mask))
    before = graph.copy()
    assert len(apply(GroupedQueryLifting(), graph).sites) == 1
    assert op_types(graph) == ["Attention"]
    assert_same_gradients(before, graph)


def test_golden() -> None:
    net = grouped_net()
    graph = net.done(attention(net, repeated(net, net.k), repeated(net, net.v)))
    GroupedQueryLifting().run(graph)
    (line,) = (text for text in render(graph).splitlines() if " = " in text)
    assert " = Attention(q_1, k_2, v_3, m_4; " in line and "scale=0.25" in line


def test_from_products_and_a_softmax() -> None:
    net = grouped_net()
    k, v = repeated(net, net.k), repeated(net, net.v)
    kt = net.op("Transpose", k, shape=(B, KV * G, D, S), perm=[0, 1, 3, 2])
    scores = net.op("Add", net.op("MatMul", net.q, kt, shape=(B, KV * G, S, S)), net.m)
    dropped = net.op("Dropout", net.op("Softmax", scores, axis=-1), net.const(0.5), net.const(True, np.bool_))
    graph = net.done(net.op("MatMul", dropped, v, shape=HEADS))
    AttentionLifting().run(graph)
    assert len(GroupedQueryLifting().run(graph).sites) == 1
    graph.validate()
    assert op_types(graph) == ["DropoutAttention"]


def test_all_heads_in_turn_is_another_order() -> None:
    net = grouped_net()
    graph = net.done(attention(net, repeated(net, net.k, tiled=True), repeated(net, net.v)))
    assert "each several times in turn" in near_misses(GroupedQueryLifting(), graph)


def test_keys_alone_are_shared() -> None:
    net = Net(q=HEADS, k=(B, KV, S, D), v=HEADS, opset=23)
    graph = net.done(net.op("Attention", net.q, repeated(net, net.k), net.v, shape=HEADS))
    assert GroupedQueryLifting().run(graph).sites == []


def test_other_readers_keep_their_copies() -> None:
    net = grouped_net()
    k = repeated(net, net.k)
    graph = net.done(attention(net, k, repeated(net, net.v)), net.op("Relu", k))
    assert len(apply(GroupedQueryLifting(), graph).sites) == 1
    assert sorted(op_types(graph)) == ["Attention", "Expand", "Relu", "Reshape", "Unsqueeze"]

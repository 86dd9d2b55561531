"""Softmax, scale folding, transposition and attention, in the form in which PyTorch's exporter writes them."""

from __future__ import annotations

import numpy as np
import pytest

from daceopt import ops
from daceopt.transformations.coarse.attention_lifting import AttentionLifting
from daceopt.transformations.coarse.attention_scale_folding import AttentionScaleFolding
from daceopt.transformations.coarse.softmax_lifting import SoftmaxLifting
from daceopt.transformations.coarse.transpose_lifting import TransposeLifting
from tests.transformations.graphs import Net, check, near_misses, op_types
from tests.transformations.lowered import apply, assert_same

B, H, S, D = 2, 3, 4, 8


def softmax(net: Net, shift: bool = True, axis: int = -1) -> str:
    axes, row = net.const([axis], np.int64), (2, 1)
    z = net.op("Sub", net.x, net.op("ReduceMax", net.x, axes, shape=row)) if shift else net.x
    e = net.op("Exp", z)
    return net.op("Div", e, net.op("ReduceSum", e, axes, shape=row))


@pytest.mark.parametrize("shift", [True, False])
def test_softmax(shift: bool) -> None:
    net = Net(x=(2, 5))
    check(SoftmaxLifting(), net.done(softmax(net, shift)), ["Softmax"])


def test_softmax_with_another_numerator() -> None:
    net = Net(x=(2, 5), z=(2, 5))
    total = net.op("ReduceSum", net.op("Exp", net.x), net.const([1], np.int64), shape=(2, 1))
    graph = net.done(net.op("Div", net.op("Exp", net.z), total))
    assert "expected the numerator" in near_misses(SoftmaxLifting(), graph)


def test_softmax_over_two_axes() -> None:
    net = Net(x=(2, 5))
    e = net.op("Exp", net.x)
    graph = net.done(net.op("Div", e, net.op("ReduceSum", e, net.const([0, 1], np.int64), shape=(1, 1))))
    assert "expected one constant axis" in near_misses(SoftmaxLifting(), graph)


def attention(net: Net, scales: str = "qk", mask: bool = True, dropout: bool = False) -> str:
    root = net.const(D**-0.25)
    kt = net.op("Transpose", net.k, shape=(B, H, D, S), perm=[0, 1, 3, 2])
    q = net.op("Mul", net.q, root) if "q" in scales else net.q
    kt = net.op("Mul", root, kt) if "k" in scales else kt
    scores = net.op("MatMul", q, kt, shape=(B, H, S, S))
    scores = net.op("Div", scores, net.const(D**0.5)) if "s" in scales else scores
    scores = net.op("Add", scores, net.m) if mask else scores
    weights = net.op("Softmax", scores, axis=-1)
    if dropout:
        weights = net.op("Dropout", weights, net.const(0.1), net.const(True, np.bool_), shape=(B, H, S, S))
    return net.op("MatMul", weights, net.v, shape=(B, H, S, D))


def attention_net() -> Net:
    return Net(q=(B, H, S, D), k=(B, H, S, D), v=(B, H, S, D), m=(B, 1, S, S), opset=23)


@pytest.mark.parametrize("scales", ["qk", "q", "qs", "qks"])
def test_scale_folding(scales: str) -> None:
    net = attention_net()
    graph = net.done(attention(net, scales))
    check(AttentionScaleFolding(), graph, ["Transpose", "MatMul", "Mul", "Add", "Softmax", "MatMul"])


def test_scale_folding_without_softmax() -> None:
    net = attention_net()
    kt = net.op("Transpose", net.k, shape=(B, H, D, S), perm=[0, 1, 3, 2])
    product = net.op("MatMul", net.op("Mul", net.q, net.const(2.0)), kt, shape=(B, H, S, S))
    assert "does not feed a Softmax" in near_misses(AttentionScaleFolding(), net.done(product))


@pytest.mark.parametrize("scales", ["", "s", "qk"])
@pytest.mark.parametrize("mask", [True, False])
def test_lifting(scales: str, mask: bool) -> None:
    net = attention_net()
    graph = net.done(attention(net, scales, mask))
    AttentionScaleFolding().run(graph)
    check(AttentionLifting(), graph, ["Attention"])


def test_lifting_of_keys_that_come_transposed() -> None:
    net = Net(q=(B, H, S, D), kt=(B, H, D, S), v=(B, H, S, D), opset=23)
    weights = net.op("Softmax", net.op("MatMul", net.q, net.kt, shape=(B, H, S, S)), axis=3)
    graph = net.done(net.op("MatMul", weights, net.v, shape=(B, H, S, D)))
    check(AttentionLifting(), graph, ["Transpose", "Attention"])


def test_dropout_draws_the_same_numbers() -> None:
    net = attention_net()
    graph = net.done(attention(net, "s", dropout=True))
    before = graph.copy()
    assert len(AttentionLifting().run(graph).sites) == 1 and op_types(graph) == ["DropoutAttention"]
    for one in (before, graph):
        ops.lower_all(one)
        assert one.uses_seed
    assert_same(before, graph)


def test_no_lifting_with_the_dropout_of_old_operator_sets() -> None:
    net = Net(q=(B, H, S, D), kt=(B, H, D, S), v=(B, H, S, D), opset=11)
    weights = net.op("Softmax", net.op("MatMul", net.q, net.kt, shape=(B, H, S, S)), axis=3)
    dropped = net.op("Dropout", weights, ratio=0.5)
    graph = net.done(net.op("MatMul", dropped, net.v, shape=(B, H, S, D)))
    assert "operator set before 12" in near_misses(AttentionLifting(), graph)


@pytest.mark.parametrize("mask", [None, (S, S), (H, 1, S)])
def test_attention_without_a_batch(mask: tuple[int, ...] | None) -> None:
    net = Net(q=(H, S, D), k=(H, S, D), v=(H, S, D), opset=23, **({} if mask is None else {"m": mask}))
    scores = net.op("MatMul", net.q, net.op("Transpose", net.k, shape=(H, D, S), perm=[0, 2, 1]), shape=(H, S, S))
    scores = scores if mask is None else net.op("Add", scores, net.m)
    graph = net.done(net.op("MatMul", net.op("Softmax", scores, axis=-1), net.v, shape=(H, S, D)))
    outcome = apply(AttentionLifting(), graph)
    assert len(outcome.sites) == 1
    assert op_types(graph).count("Attention") == 1 and "Softmax" not in op_types(graph)


def test_no_lifting_when_the_weights_are_returned() -> None:
    net = attention_net()
    y = attention(net, "s")
    weights = next(n for n in net.graph.operators() if n.op_type == "Softmax")
    graph = net.done(y, net.graph.result(weights, 0))
    assert "the attention has another user" in near_misses(AttentionLifting(), graph)


def test_no_lifting_over_another_axis() -> None:
    net = attention_net()
    kt = net.op("Transpose", net.k, shape=(B, H, D, S), perm=[0, 1, 3, 2])
    weights = net.op("Softmax", net.op("MatMul", net.q, kt, shape=(B, H, S, S)), axis=2)
    graph = net.done(net.op("MatMul", weights, net.v, shape=(B, H, S, D)))
    assert "expected the last" in near_misses(AttentionLifting(), graph)


def swap(net: Net, merged: tuple[int, ...], final: tuple[int, ...]) -> str:
    r = net.op("Reshape", net.k, net.const(merged, np.int64), shape=merged)
    t = net.op("Transpose", r, shape=(merged[0], merged[2], merged[1]), perm=[0, 2, 1])
    return net.op("Reshape", t, net.const(final, np.int64), shape=final)


def test_transpose_lifting() -> None:
    net = Net(k=(B, H, S, D))
    graph = net.done(swap(net, (B * H, S, D), (B, H, D, S)))
    check(TransposeLifting(), graph, ["Transpose"])
    assert graph.operators()[0].attribute("perm") == [0, 1, 3, 2]


def test_transpose_lifting_of_another_split() -> None:
    net = Net(k=(B, H, S, D))
    graph = net.done(swap(net, (B, H * S, D), (B, H, D, S)))
    assert "splits the last two dimensions" in near_misses(TransposeLifting(), graph)
    assert op_types(graph) == ["Reshape", "Transpose", "Reshape"]

"""Padding and batch normalization fold into convolutions only where that is exact and weights cannot change."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from daceopt.transformations.coarse.batch_norm_folding import BatchNormFolding
from daceopt.transformations.coarse.pad_conv_fusion import PadConvFusion
from tests.transformations.graphs import Net, check, near_misses

X, Y = (1, 2, 5, 5), (1, 3, 5, 5)
GENERATOR = np.random.default_rng(1)


def weights(net: Net, *shape: int, positive: bool = False) -> str:
    value = GENERATOR.standard_normal(shape)
    return net.const(np.abs(value) + 0.5 if positive else value)


def padded(net: Net, pads: list[int], value: float = 0.0, shape: Any = (1, 2, 7, 7), **attributes: Any) -> str:
    y = net.op("Pad", net.x, net.const(pads, np.int64), net.const(value), shape=shape, **attributes)
    return net.op("Conv", y, weights(net, 3, shape[1], 3, 3), shape=(1, 3, shape[2] - 2, shape[3] - 2))


def test_pad_conv() -> None:
    net = Net(x=X)
    graph = net.done(padded(net, [0, 0, 1, 1, 0, 0, 1, 1]))
    check(PadConvFusion(), graph, ["Conv"])
    assert graph.operators()[0].attribute("pads") == [1, 1, 1, 1]


def test_pad_with_axes() -> None:
    net = Net(x=X)
    pads, axes = net.const([2, 0, 0, 2], np.int64), net.const([-1, 2], np.int64)
    y = net.op("Pad", net.x, pads, None, axes, shape=(1, 2, 7, 7))
    graph = net.done(net.op("Conv", y, weights(net, 3, 2, 3, 3), shape=Y))
    check(PadConvFusion(), graph, ["Conv"])
    assert graph.operators()[0].attribute("pads") == [0, 2, 2, 0]


@pytest.mark.parametrize(
    ("pads", "options", "reason"),
    [
        ([0, 1, 1, 1, 0, 1, 1, 1], {"shape": (1, 4, 7, 7)}, "batch or channels are padded too"),
        ([0, 0, 1, 1, 0, 0, 1, 1], {"value": 1.0}, "not the constant zero"),
        ([0, 0, 1, 1, 0, 0, 1, 1], {"mode": "reflect"}, "mode reflect"),
        ([0, 0, -1, 1, 0, 0, 1, 1], {"shape": (1, 2, 5, 7)}, "the padding crops"),
    ],
)
def test_pad_that_must_stay(pads: list[int], options: dict[str, Any], reason: str) -> None:
    net = Net(x=X)
    assert reason in near_misses(PadConvFusion(), net.done(padded(net, pads, **options)))


def test_pad_with_a_second_reader() -> None:
    net = Net(x=X)
    y = padded(net, [0, 0, 1, 1, 0, 0, 1, 1])
    pad = net.graph.operators()[0]
    graph = net.done(y, net.op("Neg", net.graph.result(pad, 0)))
    assert "padded array has another user" in near_misses(PadConvFusion(), graph)


def normalized(net: Net, bias: bool, **attributes: Any) -> str:
    operands = [weights(net, 3, 2, 1, 1)] + ([weights(net, 3)] if bias else [])
    y = net.op("Conv", net.x, *operands, shape=Y)
    statistics = [weights(net, 3), weights(net, 3), weights(net, 3), weights(net, 3, positive=True)]
    return net.op("BatchNormalization", y, *statistics, shape=Y, **attributes)


@pytest.mark.parametrize("bias", [False, True])
def test_batch_norm(bias: bool) -> None:
    net = Net(x=X)
    check(BatchNormFolding(), net.done(normalized(net, bias, epsilon=1e-3)), ["Conv"])


def test_batch_norm_in_training() -> None:
    net = Net(x=X)
    assert "in training mode" in near_misses(BatchNormFolding(), net.done(normalized(net, True, training_mode=1)))


def test_batch_norm_of_weights_that_may_change() -> None:
    net = Net(x=X, w=(3, 2, 1, 1))
    y = net.op("Conv", net.x, net.w, shape=Y)
    statistics = [weights(net, 3, positive=True) for _ in range(4)]
    graph = net.done(net.op("BatchNormalization", y, *statistics, shape=Y))
    assert "w_2 is no constant" in near_misses(BatchNormFolding(), graph)

"""Rotary positions in the forms of transformers (halves, neighbours), and what only looks like them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from daceopt.ir.text.render import render
from daceopt.transformations.coarse.rotary_lifting import RotaryLifting
from tests.transformations.derivatives import assert_same_gradients
from tests.transformations.graphs import Net, near_misses, op_types
from tests.transformations.lowered import apply

B, H, S, D = 2, 3, 4, 6
FAR = 2**63 - 1


def rotary_net(angles: tuple[int, ...] = (1, 1, S, D), x: tuple[int, ...] = (B, H, S, D)) -> Net:
    return Net(x=x, cos=angles, sin=angles)


def sliced(net: Net, x: str, start: int, end: int, step: int = 1, axis: int = 3) -> str:
    bounds = [net.const([v], np.int64) for v in (start, end, axis, step)]
    shape = list(net.graph.shape(x))
    shape[axis] = len(range(*slice(start, end, step).indices(int(shape[axis]))))
    return net.op("Slice", x, *bounds, shape=tuple(shape))


def halves(net: Net, cut: int = D // 2, axis: int = 3, swapped: bool = False) -> str:
    second, first = sliced(net, net.x, cut, FAR, axis=axis), sliced(net, net.x, 0, cut, axis=axis)
    parts = (first, net.op("Neg", second)) if swapped else (net.op("Neg", second), first)
    return net.op("Concat", *parts, shape=net.graph.shape(net.x), axis=axis)


def split(net: Net, cut: int = D // 2, axis: int = 3) -> str:
    parts = []
    for extent in (cut, net.graph.shape(net.x)[axis] - cut):
        shape = [extent if k == axis else n for k, n in enumerate(net.graph.shape(net.x))]
        parts.append(net.graph.add_array("part", shape, net.graph.dtype(net.x)))
    sizes = net.const([net.graph.shape(n)[axis] for n in parts], np.int64)
    net.graph.add_operator("Split", [net.x, sizes], parts, {"axis": axis})
    return net.op("Concat", net.op("Neg", parts[1]), parts[0], shape=net.graph.shape(net.x), axis=axis)


def neighbours(net: Net, even: int = 0) -> str:
    pair = (B, H, S, D // 2, 1)
    last = net.const([-1], np.int64)
    left = net.op("Unsqueeze", net.op("Neg", sliced(net, net.x, 1 - even, FAR, 2)), last, shape=pair)
    right = net.op("Unsqueeze", sliced(net, net.x, even, FAR, 2), last, shape=pair)
    stacked = net.op("Concat", left, right, shape=(*pair[:-1], 2), axis=-1)
    return net.op("Reshape", stacked, net.const([B, H, S, D], np.int64), shape=(B, H, S, D))


def rotated(net: Net, turned: str, order: int = 0) -> str:
    along, across = net.op("Mul", net.x, net.cos), net.op("Mul", turned, net.sin)
    return net.op("Add", *((along, across) if order == 0 else (across, along)))


@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize("turned", [halves, split, neighbours])
def test_forms_of_models(turned: Any, order: int) -> None:
    net = rotary_net()
    graph = net.done(rotated(net, turned(net), order))
    before = graph.copy()
    assert len(apply(RotaryLifting(), graph, special=True).sites) == 1
    assert op_types(graph) == ["Rotary"]
    assert graph.operators()[0].attribute("interleaved") == int(turned is neighbours)
    assert_same_gradients(before, graph)


@pytest.mark.parametrize("angles", [(S, D), (B, H, S, D), (D,)])
def test_angles_that_broadcast(angles: tuple[int, ...]) -> None:
    net = rotary_net(angles)
    graph = net.done(rotated(net, halves(net)))
    before = graph.copy()
    assert len(apply(RotaryLifting(), graph).sites) == 1
    assert_same_gradients(before, graph)


def test_golden() -> None:
    net = rotary_net((S, D))
    graph = net.done(rotated(net, halves(net)))
    RotaryLifting().run(graph)
    assert render(graph) == (
        "graph test(x_1: float32[2, 3, 4, 6], cos_2: float32[4, 6], sin_3: float32[4, 6]) -> add_18\n"
        '  opset "" 21\n'
        '  add_18: float32[2, 3, 4, 6] as "Add" = "daceopt".Rotary(x_1, cos_2, sin_3; interleaved=0)\n'
    )


def test_what_others_read_stays() -> None:
    net = rotary_net()
    turned = halves(net)
    graph = net.done(rotated(net, turned), net.op("Relu", turned))
    assert "has another user" in near_misses(RotaryLifting(), graph)


@pytest.mark.parametrize(
    ("turned", "reason"),
    [
        (lambda net: halves(net, cut=2), "the slices are"),
        (lambda net: halves(net, cut=2, axis=2), "halves of axis 2"),
        (lambda net: split(net, cut=2), "the slices are"),
        (lambda net: split(net, axis=1, cut=1), "halves of axis 1"),
        (lambda net: neighbours(net, even=1), "the slices are"),
    ],
)
def test_other_parts(turned: Any, reason: str) -> None:
    net = rotary_net()
    assert reason in near_misses(RotaryLifting(), net.done(rotated(net, turned(net))))


def test_the_other_half_negated() -> None:
    net = rotary_net()
    graph = net.done(rotated(net, halves(net, swapped=True)))
    assert RotaryLifting().run(graph).sites == []


def test_another_array_along() -> None:
    net = Net(x=(B, H, S, D), z=(B, H, S, D), cos=(S, D), sin=(S, D))
    graph = net.done(net.op("Add", net.op("Mul", net.z, net.cos), net.op("Mul", halves(net), net.sin)))
    assert RotaryLifting().run(graph).sites == []


def test_angles_of_half_the_features() -> None:
    """One angle for all features is no table of them."""
    net = rotary_net((S, 1))
    graph = net.done(rotated(net, halves(net)))
    assert "has no value for each of the features" in near_misses(RotaryLifting(), graph)

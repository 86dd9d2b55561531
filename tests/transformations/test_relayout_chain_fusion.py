"""Chains of reshapes and transpositions: as short as they can be, and the same elements in the same order."""

from __future__ import annotations

import random
from math import prod

import numpy as np
import pytest

from daceopt.transformations.coarse.relayout_chain_fusion import RelayoutChainFusion
from tests.transformations.derivatives import assert_same_gradients
from tests.transformations.graphs import Net, assert_same_numbers, check, near_misses, op_types

B, S, H, D = 2, 3, 4, 5


def reshaped(net: Net, x: str, *shape: int) -> str:
    return net.op("Reshape", x, net.const(shape, np.int64), shape=shape)


def turned(net: Net, x: str, *perm: int) -> str:
    return net.op("Transpose", x, shape=tuple(net.graph.shape(x)[p] for p in perm), perm=list(perm))


def test_there_and_back_again() -> None:
    net = Net(x=(B, H, S, D))
    y = turned(net, reshaped(net, turned(net, net.x, 0, 2, 1, 3), B, S, H * D), 0, 2, 1)
    y = reshaped(net, y, B, H, D, S)
    graph = net.done(net.op("Relu", y))
    before = graph.copy()
    check(RelayoutChainFusion(), graph, ["Transpose", "Relu"], sites=2)
    assert graph.operators()[0].attribute("perm") == [0, 1, 3, 2]
    assert_same_gradients(before, graph)


def test_what_cancels_goes() -> None:
    net = Net(x=(B, S, H))
    y = reshaped(net, turned(net, reshaped(net, turned(net, net.x, 1, 0, 2), S, B * H), 1, 0), B, H, S)
    y = turned(net, y, 0, 2, 1)
    check(RelayoutChainFusion(), net.done(net.op("Relu", y)), ["Relu"], sites=3)


def test_extents_of_one_go_anywhere() -> None:
    net = Net(x=(B, 1, S))
    y = net.op("Squeeze", turned(net, net.x, 1, 0, 2), net.const([0], np.int64), shape=(B, S))
    check(RelayoutChainFusion(), net.done(net.op("Relu", y)), ["Reshape", "Relu"])


def test_one_reshape_on_either_side_at_most() -> None:
    net = Net(x=(B * H, S * D))
    y = reshaped(net, turned(net, reshaped(net, net.x, B, H, S * D), 0, 2, 1), B, S, D * H)
    y = reshaped(net, y, B * S, D, H)
    check(RelayoutChainFusion(), net.done(net.op("Relu", y)), ["Reshape", "Transpose", "Reshape", "Relu"])


def test_a_result_that_others_read_ends_the_chain() -> None:
    net = Net(x=(B, S, H))
    first = turned(net, net.x, 1, 0, 2)
    graph = net.done(net.op("Relu", turned(net, first, 1, 0, 2)), net.op("Tanh", first))
    assert RelayoutChainFusion().run(graph).sites == [] and op_types(graph).count("Transpose") == 2


def test_extents_that_do_not_divide() -> None:
    net = Net(x=(4, 6))
    graph = net.done(net.op("Relu", reshaped(net, turned(net, net.x, 1, 0), 8, 3)))
    assert "do not divide one another" in near_misses(RelayoutChainFusion(), graph)


def test_an_output_is_an_array_of_its_own() -> None:
    net = Net(x=(B, S))
    graph = net.done(turned(net, turned(net, net.x, 1, 0), 1, 0))
    assert RelayoutChainFusion().run(graph).sites == []


@pytest.mark.parametrize("seed", range(24))
def test_random_chains(seed: int) -> None:
    source = random.Random(seed)
    net = Net(x=tuple(source.choice((1, 2, 3, 4, 6)) for _ in range(source.randint(1, 4))))
    y = net.x
    for _ in range(source.randint(2, 6)):
        shape = net.graph.shape(y)
        if source.random() < 0.5:
            y = turned(net, y, *source.sample(range(len(shape)), len(shape)))
        else:
            y = reshaped(net, y, *factors(source, prod(shape)))
    graph = net.done(net.op("Relu", y))
    before = graph.copy()
    RelayoutChainFusion().run(graph)
    graph.validate()
    assert_same_numbers(before, graph)
    assert RelayoutChainFusion().run(graph).sites == [] and len(graph.nodes()) <= len(before.nodes())


def factors(source: random.Random, size: int) -> list[int]:
    """A shape of this many elements."""
    shape = []
    for _ in range(source.randint(0, 3)):
        shape.append(source.choice([n for n in range(1, size + 1) if size % n == 0]))
        size //= shape[-1]
    return [*shape, size]

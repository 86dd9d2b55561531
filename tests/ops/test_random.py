"""Dropout: identity in evaluation, and in training a mask that depends on seed, node and element only."""

from __future__ import annotations

import numpy as np
import pytest

from daceopt import ops
from daceopt.ir.data.arrays import SEED
from daceopt.ir.graph.graph import Graph
from daceopt.ir.interpreter.interpret import interpret
from tests.ops.single import lowered, single

X = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)


def training(ratio: float, constants: tuple[int, ...] = (1, 2)) -> tuple[Graph, dict[str, np.ndarray]]:
    return single("Dropout", [X, np.float32(ratio).reshape(()), np.array(True)], outputs=2, constants=constants)


def run(graph: Graph, feeds: dict[str, np.ndarray], seed: int) -> tuple[np.ndarray, np.ndarray]:
    done = interpret(graph, {**feeds, SEED: np.array([seed])})
    return done[graph.outputs[0]], done[graph.outputs[1]]


@pytest.mark.parametrize("constants", [(1, 2), (2,)])
def test_training(constants: tuple[int, ...]) -> None:
    graph, feeds = training(0.25, constants)
    y, mask = run(lowered(graph), feeds, seed=5)
    np.testing.assert_allclose(y, np.where(mask, X / 0.75, 0), rtol=1e-6)
    assert abs(mask.mean() - 0.75) < 0.03


def test_the_seed_decides() -> None:
    graph, feeds = training(0.5)
    graph = lowered(graph)
    first, again, other = (run(graph, feeds, seed)[1] for seed in (1, 1, 2))
    assert (first == again).all()
    assert 0.4 < (first != other).mean() < 0.6


def test_two_nodes_have_two_masks() -> None:
    graph, feeds = training(0.5)
    x = graph.inputs[0]
    other = graph.add_array("other", X.shape, graph.dtype(x))
    node = graph.operators()[0]
    graph.add_operator("Dropout", [x, *graph.inputs_of(node)[1:]], [other])
    graph.add_output(other)
    done = interpret(lowered(graph), {**feeds, SEED: np.array([3])})
    assert 0.4 < ((done[graph.outputs[0]] == 0) != (done[other] == 0)).mean() < 0.6


@pytest.mark.parametrize("ratio, kept", [(0.0, 1.0), (1.0, 0.0)])
def test_extreme_ratios(ratio: float, kept: float) -> None:
    graph, feeds = training(ratio)
    y, mask = run(lowered(graph), feeds, seed=1)
    assert mask.mean() == kept
    np.testing.assert_array_equal(y, X * kept)


def test_evaluation_is_the_identity() -> None:
    graph, feeds = single("Dropout", [X], outputs=2)
    y, mask = run(lowered(graph), feeds, seed=1)
    np.testing.assert_array_equal(y, X)
    assert mask.all()


def test_a_mode_known_only_at_run_time_says_why_not() -> None:
    graph, _ = training(0.5, constants=(1,))
    assert "training_mode" in str(ops.why_unsupported(graph, graph.operators()[0]))

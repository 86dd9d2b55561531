"""Random generators: distributions at fixed seeds, repeatability, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from daceopt import ops
from daceopt.ir.data.arrays import SEED
from daceopt.ir.interpreter.interpret import interpret
from tests.ops.compiled import compiled
from tests.ops.single import lowered, single

COUNT = 20_000


def draw(op_type: str, inputs: list[Any], like: np.ndarray, call: int = 1, **attributes: Any) -> np.ndarray:
    """The interpreted result."""
    graph, feeds = single(op_type, inputs, like=[like], **attributes)
    return interpret(lowered(graph), {**feeds, SEED: np.array([call])})[graph.outputs[0]]


def distance(sample: np.ndarray, cumulative: np.ndarray) -> float:
    """Kolmogorov and Smirnov's statistic, times the root of the count: above 1.63 once in a hundred."""
    steps = np.arange(len(sample) + 1) / len(sample)
    return float(max((cumulative - steps[:-1]).max(), (steps[1:] - cumulative).max()) * np.sqrt(len(sample)))


def normal_cumulative(x: np.ndarray) -> np.ndarray:
    return torch.special.ndtr(torch.from_numpy(x.astype(np.float64))).numpy()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_uniform(dtype: type) -> None:
    y = draw("RandomUniform", [], np.zeros(COUNT, dtype), low=-3.0, high=5.0, shape=[COUNT], dtype=1)
    assert y.dtype == dtype
    assert y.min() >= -3
    assert y.max() < 5
    assert distance(np.sort(y), (np.sort(y) + 3) / 8) < 1.63


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_normal(dtype: type) -> None:
    y = draw("RandomNormal", [], np.zeros((4, COUNT // 4), dtype), mean=2.0, scale=0.5, shape=[4, COUNT // 4])
    z = np.sort((y.reshape(-1).astype(np.float64) - 2) / 0.5)
    assert y.dtype == dtype
    assert distance(z, normal_cumulative(z)) < 1.63
    assert abs(z.mean()) < 3 / np.sqrt(COUNT)
    assert abs(z.var() - 1) < 3 * np.sqrt(2 / COUNT)
    assert abs(np.corrcoef(y[0, 1:], y[0, :-1])[0, 1]) < 0.05
    assert abs((z**3).mean()) < 0.1
    assert abs((z**4).mean() - 3) < 0.25


@pytest.mark.parametrize("p", [0.0, 0.25, 1.0])
@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.bool_])
def test_bernoulli(p: float, dtype: type) -> None:
    y = draw("Bernoulli", [np.full(COUNT, p, np.float32)], np.zeros(COUNT, dtype))
    assert y.dtype == dtype
    assert set(np.unique(y)) <= {0, 1}
    assert abs(y.mean() - p) <= 3 * np.sqrt(p * (1 - p) / COUNT)


def test_multinomial() -> None:
    weights = np.array([[1, 0, 3, 6], [5, 5, 0, 0]])
    with np.errstate(divide="ignore"):
        logits = np.log(weights.astype(np.float32)) + np.float32(7)
    y = draw("Multinomial", [logits], np.zeros((2, COUNT), np.int32), sample_size=COUNT)
    for row, expected in zip(y, weights / 10):
        found = np.bincount(row, minlength=4) / COUNT
        assert (np.abs(found - expected) <= 3 * np.sqrt(expected * (1 - expected) / COUNT)).all()


@pytest.mark.parametrize("op_type", ["RandomNormal", "RandomUniform"])
@pytest.mark.parametrize("wide", [False, True])
def test_the_seed_of_the_call_decides(op_type: str, wide: bool) -> None:
    like = np.zeros(100, np.float64 if wide else np.float32)
    first, again, other = (draw(op_type, [], like, seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert (first != other).all()
    fixed = [draw(op_type, [], like, seed, seed=4.0) for seed in (1, 2)]
    np.testing.assert_array_equal(*fixed)
    assert (fixed[0] != draw(op_type, [], like, 1, seed=5.0)).mean() > 0.99


@pytest.mark.parametrize("op_type", ["RandomNormalLike", "RandomUniformLike"])
def test_compiled_like_the_interpreter(op_type: str) -> None:
    x = np.zeros((3, 5), np.int32)
    (y,) = compiled(op_type, [x], seed=3.0, dtype=11)
    want = draw(op_type, [x], np.zeros((3, 5), np.float64), seed=3.0, dtype=11)
    np.testing.assert_allclose(y, want, rtol=1e-13)


def test_compiled_draws_from_the_seed_of_torch() -> None:
    results = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        results.append(compiled("Bernoulli", [np.full(200, 0.5, np.float32)])[0])
    np.testing.assert_array_equal(results[0], results[1])
    assert 0.3 < (results[0] != results[2]).mean() < 0.7


def test_compiled_multinomial() -> None:
    logits = np.log(np.array([[0.1, 0.2, 0.7]], np.float32))
    (y,) = compiled("Multinomial", [logits], sample_size=4000, dtype=7, seed=1.0)
    assert y.dtype == np.int64
    np.testing.assert_allclose(np.bincount(y[0]) / 4000, [0.1, 0.2, 0.7], atol=0.03)


def test_results_that_are_no_floats_say_why() -> None:
    graph, _ = single("RandomNormalLike", [np.zeros(3, np.int32)], like=[np.zeros(3, np.int32)])
    assert "a result of int32; expected a float type" in str(ops.why_unsupported(graph, graph.operators()[0]))
    graph, _ = single("Multinomial", [np.zeros((2, 0), np.float32)], like=[np.zeros((2, 1), np.int32)])
    assert "at least one class" in str(ops.why_unsupported(graph, graph.operators()[0]))

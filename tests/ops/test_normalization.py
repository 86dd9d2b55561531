"""Normalizations against PyTorch in float64, with all their outputs."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from daceopt import ops
from daceopt.ir.interpret import interpret
from tests.numerics import assert_within_rounding
from tests.ops.single import check, lowered, single


def data(*shape: int, dtype: str = "float32", seed: int = 0) -> np.ndarray:
    return np.asarray(np.random.default_rng((seed, *shape)).normal(size=shape) * 2 + 1).astype(dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("axis", [-1, 1, 0])
def test_layer_normalization(dtype: str, axis: int) -> None:
    x = data(3, 4, 5, dtype=dtype)
    scale, bias = data(*x.shape[axis:], dtype=dtype), data(*x.shape[axis:], dtype=dtype, seed=1)
    graph, feeds = single("LayerNormalization", [x, scale, bias], axis=axis, epsilon=1e-3)
    ours = interpret(lowered(graph), feeds)[graph.outputs[0]]
    double = [torch.from_numpy(v).double() for v in (x, scale, bias)]
    expected = torch.nn.functional.layer_norm(double[0], scale.shape, double[1], double[2], 1e-3)
    assert_within_rounding(ours, expected, ulps=16)


def test_statistics_of_layer_normalization() -> None:
    check("LayerNormalization", [data(3, 4, 5), data(5), data(5)], outputs=3)
    check("LayerNormalization", [data(3, 4, 5), data(5)])


def test_variance_does_not_cancel() -> None:
    x = (data(4, 64) * 1e-2 + 1000).astype(np.float32)
    graph, feeds = single("LayerNormalization", [x, np.ones(64, np.float32)])
    ours = interpret(lowered(graph), feeds)[graph.outputs[0]]
    expected = torch.nn.functional.layer_norm(torch.from_numpy(x).double(), (64,))
    theirs = torch.nn.functional.layer_norm(torch.from_numpy(x), (64,))
    assert_within_rounding(ours, expected, theirs)


@pytest.mark.parametrize("axis", [-1, 1])
def test_rms_normalization(axis: int) -> None:
    x = data(3, 4, 5)
    check("RMSNormalization", [x, data(*x.shape[axis:])], axis=axis, epsilon=1e-4)


@pytest.mark.parametrize("shape", [(4, 3, 5, 5), (6, 3), (2, 3, 7)])
def test_batch_normalization(shape: tuple[int, ...]) -> None:
    inputs = [data(*shape), data(3), data(3), data(3), np.abs(data(3)) + 0.1]
    check("BatchNormalization", inputs)
    check("BatchNormalization", inputs, outputs=3, training_mode=1, momentum=0.7)


def test_statistics_for_each_element_say_why_not() -> None:
    inputs = [data(2, 3), data(3), data(3), data(3), np.abs(data(3))]
    graph, _ = single("BatchNormalization", inputs, opset=7, like=[inputs[0]], spatial=0)
    assert "spatial=0" in str(ops.why_unsupported(graph, graph.operators()[0]))


def test_instance_normalization() -> None:
    x, scale, bias = data(2, 3, 4, 5), data(3), data(3, seed=1)
    graph, feeds = single("InstanceNormalization", [x, scale, bias])
    double = [torch.from_numpy(v).double() for v in (x, scale, bias)]
    expected = torch.nn.functional.instance_norm(double[0], weight=double[1], bias=double[2])
    assert_within_rounding(interpret(lowered(graph), feeds)[graph.outputs[0]], expected, ulps=16)


@pytest.mark.parametrize("opset", [18, 21])
def test_group_normalization(opset: int) -> None:
    x = data(2, 6, 4, 5)
    count = 3 if opset == 18 else 6
    scale, bias = data(count), data(count, seed=1)
    graph, feeds = single("GroupNormalization", [x, scale, bias], opset=opset, like=[x], num_groups=3)
    double = [torch.from_numpy(v).double() for v in (x, scale.repeat(6 // count), bias.repeat(6 // count))]
    expected = torch.nn.functional.group_norm(double[0], 3, double[1], double[2])
    assert_within_rounding(interpret(lowered(graph), feeds)[graph.outputs[0]], expected, ulps=16)

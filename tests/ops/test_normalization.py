"""Normalizations against PyTorch in float64, with all their outputs."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from daceopt.ir.interpreter.interpret import interpret
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


def test_a_variance_that_overflows_is_infinite() -> None:
    x = np.array([[3e38, -1e38, 1, 2], [1e30, 1e30, -1e30, 0], [np.inf, 1, 2, 3]], np.float32)
    graph, feeds = single("LayerNormalization", [x, np.ones(4, np.float32)])
    ours = interpret(lowered(graph), feeds)[graph.outputs[0]]
    assert torch.from_numpy(x).var(1)[:2].isinf().all()
    np.testing.assert_array_equal(ours, [[0] * 4, [0] * 4, [np.nan] * 4])


@pytest.mark.parametrize("op_type", ["LayerNormalization", "InstanceNormalization", "BatchNormalization"])
def test_equal_numbers_have_no_distance_from_their_mean(op_type: str) -> None:
    """The mean's rounding, over the root of epsilon, was a thousand units in the last place."""
    channels = data(5)
    x = np.repeat(channels, 77).reshape(1, 5, 77)
    scale, bias = (data(77), data(77, seed=1)) if op_type == "LayerNormalization" else (data(5), data(5, seed=1))
    training = {"training_mode": 1} if op_type == "BatchNormalization" else {}
    more = [data(5), np.ones(5, np.float32)] if training else []
    graph, feeds = single(op_type, [x, scale, bias, *more], **training, like=[x])
    ours = interpret(lowered(graph), feeds)[graph.outputs[0]]
    np.testing.assert_array_equal(ours, np.broadcast_to(bias if len(bias) == 77 else bias[:, None], x.shape))


@pytest.mark.parametrize("axis", [-1, 1])
def test_rms_normalization(axis: int) -> None:
    x = data(3, 4, 5)
    check("RMSNormalization", [x, data(*x.shape[axis:])], axis=axis, epsilon=1e-4)


@pytest.mark.parametrize("shape", [(4, 3, 5, 5), (6, 3), (2, 3, 7)])
def test_batch_normalization(shape: tuple[int, ...]) -> None:
    inputs = [data(*shape), data(3), data(3), data(3), np.abs(data(3)) + 0.1]
    check("BatchNormalization", inputs)
    check("BatchNormalization", inputs, outputs=3, training_mode=1, momentum=0.7)


def test_statistics_for_each_element() -> None:
    shape = (4, 3, 2)
    x, scale, bias, centre = data(*shape), *(data(*shape[1:], seed=k) for k in range(1, 4))
    variance = np.abs(data(*shape[1:], seed=4)) + 0.1
    graph, feeds = single(
        "BatchNormalization", [x, scale, bias, centre, variance], opset=7, like=[x], spatial=0, epsilon=1e-3
    )
    double = [v.astype(np.float64) for v in (x, scale, bias, centre, variance)]
    expected = (double[0] - double[3]) / np.sqrt(double[4] + 1e-3) * double[1] + double[2]
    assert_within_rounding(interpret(lowered(graph), feeds)[graph.outputs[0]], expected)


@pytest.mark.parametrize("opset", [7, 9])
def test_training_by_the_outputs_that_are_named(opset: int) -> None:
    x, scale, bias, centre, variance = data(4, 3, 5), data(3), data(3), data(3), np.abs(data(3)) + 0.1
    graph, feeds = single(
        "BatchNormalization", [x, scale, bias, centre, variance], opset=opset, like=[x, *[scale] * 4], momentum=0.7
    )
    done = interpret(lowered(graph), feeds)
    found = [done[n] for n in graph.outputs]
    wide = torch.from_numpy(x).double()
    own = wide.mean((0, 2)), wide.var((0, 2), correction=0)
    affine = (torch.from_numpy(v).double() for v in (scale, bias))
    assert_within_rounding(found[0], torch.nn.functional.batch_norm(wide, None, None, *affine, training=True))
    for moved, old, new in zip(found[1:3], (centre, variance), own):
        assert_within_rounding(moved, 0.7 * torch.from_numpy(old).double() + 0.3 * new)
    for saved, new in zip(found[3:], own):
        assert_within_rounding(saved, new)
    # nobody need read the statistics
    del graph.outputs[1:]
    graph.prune()
    np.testing.assert_array_equal(interpret(lowered(graph), feeds)[graph.outputs[0]], found[0])


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


@pytest.mark.parametrize("axes", [[0, 2, 3], [0, -1], [1]])
def test_mean_variance_normalization(axes: list[int]) -> None:
    x = data(3, 4, 5, 6)
    wide = torch.from_numpy(x).double()
    expected = (wide - wide.mean(axes, True)) / (wide.var(axes, correction=0, keepdim=True).sqrt() + 1e-9)
    options = {} if axes == [0, 2, 3] else {"axes": axes}
    graph, feeds = single("MeanVarianceNormalization", [x], like=[x], **options)
    assert_within_rounding(interpret(lowered(graph), feeds)[graph.outputs[0]], expected)


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_norm_normalization(p: int, axis: int) -> None:
    x = data(3, 4, 5)
    x[:, :, 0] = 0
    graph, feeds = single("LpNormalization", [x], like=[x], p=p, axis=axis)
    expected = torch.nn.functional.normalize(torch.from_numpy(x).double(), p, axis)
    assert_within_rounding(interpret(lowered(graph), feeds)[graph.outputs[0]], expected)

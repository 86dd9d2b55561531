"""Gradient rules, and the gradients derived from lowerings, against PyTorch in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dace
import numpy as np
import pytest
import torch
from torch.nn import functional

from tests.autodiff.checking import check

OnnxBuild = Callable[..., str]


def op(op_type: str, shape: tuple[int, ...], constants: dict[int, Any] | None = None, **attributes: Any) -> OnnxBuild:
    """Builds one operator with an output of ``shape``; ``constants`` are inputs by position."""

    def build(b: Any, *names: str) -> str:
        given = iter(names)
        count = len(names) + len(constants or {})
        inputs = [
            b.constant(np.asarray(constants[k])) if constants and k in constants else next(given) for k in range(count)
        ]
        y = b.graph.add_array("y", shape, dace.float64)
        b.graph.add_operator(op_type, inputs, [y], attributes)
        return str(y)

    return build


@pytest.mark.parametrize("axis", [-1, 1])
def test_softmax(axis: int) -> None:
    check(op("Softmax", (2, 3, 4), axis=axis), lambda x: torch.softmax(x, axis), (2, 3, 4))
    check(op("LogSoftmax", (2, 3, 4), axis=axis), lambda x: torch.log_softmax(x, axis), (2, 3, 4))


def test_layer_normalization() -> None:
    check(
        op("LayerNormalization", (2, 3, 4), epsilon=1e-5),
        lambda x, s, c: functional.layer_norm(x, (4,), s, c),
        (2, 3, 4), (4,), (4,),
    )  # fmt: skip
    check(
        op("LayerNormalization", (2, 3, 4), axis=1, epsilon=1e-5),
        lambda x, s: functional.layer_norm(x, (3, 4), s),
        (2, 3, 4), (3, 4),
    )  # fmt: skip


def test_rms_normalization() -> None:
    check(
        op("RMSNormalization", (2, 3, 4), epsilon=1e-5),
        lambda x, s: functional.rms_norm(x, (4,), s, 1e-5),
        (2, 3, 4),
        (4,),
    )


def test_batch_normalization_in_training() -> None:
    running = {3: np.zeros(3), 4: np.ones(3)}
    check(
        op("BatchNormalization", (4, 3, 2, 2), running, training_mode=1, epsilon=1e-5),
        lambda x, s, c: functional.batch_norm(x, None, None, s, c, training=True),
        (4, 3, 2, 2), (3,), (3,),
    )  # fmt: skip


def test_batch_normalization_in_evaluation() -> None:
    mean, variance = np.array([0.5, -1.0, 2.0]), np.array([1.0, 0.5, 2.0])
    check(
        op("BatchNormalization", (4, 3, 2, 2), {3: mean, 4: variance}, epsilon=1e-5),
        lambda x, s, c: functional.batch_norm(x, torch.tensor(mean), torch.tensor(variance), s, c),
        (4, 3, 2, 2), (3,), (3,),
    )  # fmt: skip


@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize(
    "op_type, function", [("ReduceMax", torch.amax), ("ReduceMin", torch.amin), ("ReduceLogSumExp", torch.logsumexp)]
)
def test_reductions_with_rules(op_type: str, function: Any, keepdims: int) -> None:
    shape = (2, 1, 4) if keepdims else (2, 4)
    ties = np.round(np.random.default_rng(0).normal(size=(2, 5, 4)))
    check(
        op(op_type, shape, axes=[1], keepdims=keepdims), lambda x: function(x, 1, keepdim=bool(keepdims)), values=[ties]
    )


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_gather(axis: int) -> None:
    index = [[0, 1], [1, 1]]
    shape = (*(3, 4, 5)[:axis], 2, 2, *(3, 4, 5)[axis + 1 :])
    check(
        op("Gather", shape, axis=axis),
        lambda x, k: torch.index_select(x, axis, k.reshape(-1)).reshape(shape),
        (3, 4, 5),
        integers=[index],
    )


def test_gather_elements() -> None:
    index = np.array([[0, 1, 1], [2, 2, 0]])
    check(op("GatherElements", (2, 3), axis=0), lambda x, k: torch.gather(x, 0, k), (4, 3), integers=[index])


def test_concat_and_pad() -> None:
    check(op("Concat", (2, 7), axis=1), lambda x, y: torch.cat([x, y], 1), (2, 3), (2, 4))
    check(op("Pad", (5, 4), {1: np.array([1, 0, 1, 2])}), lambda x: functional.pad(x, (0, 2, 1, 1)), (3, 2))
    check(op("Pad", (3, 4), {1: np.array([-1, 1, 1, 1])}), lambda x: functional.pad(x, (1, 1, -1, 1)), (3, 2))


DERIVED: list[tuple[str, Callable[[torch.Tensor], torch.Tensor], dict[str, Any]]] = [
    ("Relu", torch.relu, {}),
    ("Gelu", functional.gelu, {}),
    ("Gelu", lambda x: functional.gelu(x, approximate="tanh"), {"approximate": "tanh"}),
    ("Mish", functional.mish, {}),
    ("Softplus", functional.softplus, {}),
    ("Sigmoid", torch.sigmoid, {}),
    ("Elu", functional.elu, {"alpha": 1.0}),
    ("LeakyRelu", lambda x: functional.leaky_relu(x, 0.25), {"alpha": 0.25}),
    ("HardSwish", functional.hardswish, {}),
    ("Abs", torch.abs, {}),
    ("Swish", functional.silu, {}),
    ("ReduceL2", lambda x: x.norm(dim=-1, keepdim=True), {"axes": [-1]}),
]


@pytest.mark.parametrize("op_type, function, attributes", DERIVED, ids=[d[0] for d in DERIVED])
def test_derived(op_type: str, function: Callable[[torch.Tensor], torch.Tensor], attributes: dict[str, Any]) -> None:
    values = np.array([[-3.0, -1.5, -0.5, 0.0], [0.25, 1.0, 2.0, 3.0]])
    shape = (2, 1) if op_type == "ReduceL2" else (2, 4)
    check(op(op_type, shape, **attributes), function, values=[values])


def test_clip_passes_the_gradient_at_its_bounds() -> None:
    values = np.array([-2.0, -1.0, 0.0, 1.0, 2.0])
    check(op("Clip", (5,), {1: np.array(-1.0), 2: np.array(1.0)}), lambda x: x.clamp(-1, 1), values=[values])


def test_dense() -> None:
    check(op("MatMul", (2, 3, 5)), torch.matmul, (2, 3, 4), (4, 5))
    check(
        op("Gemm", (3, 5), transB=1, alpha=0.5, beta=2.0), lambda a, b, c: 0.5 * a @ b.T + 2 * c, (3, 4), (5, 4), (5,)
    )
    check(
        op("Einsum", (2, 2, 3, 5), equation="bqhd,bkhd->bhqk"),
        lambda a, b: torch.einsum("bqhd,bkhd->bhqk", a, b),
        (2, 3, 2, 4),
        (2, 5, 2, 4),
    )
    check(
        op("Conv", (2, 4, 3, 3), strides=[2, 2], pads=[1, 1, 1, 1]),
        lambda x, w, c: functional.conv2d(x, w, c, 2, 1),
        (2, 3, 6, 6),
        (4, 3, 3, 3),
        (4,),
    )


def test_pools() -> None:
    check(
        op("MaxPool", (2, 3, 3, 3), kernel_shape=[2, 2], strides=[2, 2]),
        lambda x: functional.max_pool2d(x, 2),
        (2, 3, 6, 6),
    )
    check(
        op("AveragePool", (2, 3, 3, 3), kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
        lambda x: functional.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
        (2, 3, 6, 6),
    )
    check(op("GlobalAveragePool", (2, 3, 1, 1)), lambda x: x.mean((2, 3), keepdim=True), (2, 3, 4, 4))


@pytest.mark.parametrize("is_causal", [0, 1])
def test_attention(is_causal: int) -> None:
    shape = (2, 2, 4, 3)
    reference = functional.scaled_dot_product_attention
    check(
        op("Attention", shape, is_causal=is_causal),
        lambda q, k, v: reference(q, k, v, is_causal=bool(is_causal)),
        shape,
        shape,
        shape,
    )


@pytest.mark.parametrize("largest", [0, 1])
def test_top_k_whose_indices_nobody_reads(largest: int) -> None:
    """As in a median or a quantile: the places are looked for again."""

    def build(b: Any, x: str) -> str:
        found = b.graph.add_array("found", (3, 2), dace.float64)
        k = b.constant(np.array([2]))
        b.graph.add_operator("TopK", [x, k], [found, None], {"axis": 1, "largest": largest})
        return str(found)

    check(build, lambda x: x.topk(2, dim=1, largest=bool(largest)).values, (3, 5))

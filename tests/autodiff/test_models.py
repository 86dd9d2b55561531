"""Gradients of whole models, operator by operator and fused, against PyTorch."""

from __future__ import annotations

from typing import Any

import dace
import numpy as np
import pytest
import sympy
import torch
import torch.nn.functional as F

from daceopt.ir.nodes.builder import Builder
from daceopt.ir.scalar import scalar
from tests.autodiff.checking import check


def op(b: Builder, op_type: str, inputs: list[Any], shape: tuple[int, ...], extra: int = 0, **attributes: Any) -> str:
    """An operator node with one result of ``shape`` (and ``extra`` unread results of shape (C,))."""
    out = b.graph.add_array(op_type, shape, dace.float64)
    more = [b.graph.add_array("statistic", b.graph.shape(inputs[1]), dace.float64) for _ in range(extra)]
    b.graph.add_operator(op_type, inputs, [out, *more], attributes)
    return out


def mish(b: Builder, x: str) -> str:
    t = b.elementwise(sympy.tanh, b.elementwise(scalar.softplus, x))
    return str(b.elementwise(lambda u, v: u * v, x, t))


def test_mish_stores_nothing() -> None:
    recomputed, stored = check(mish, F.mish, (3, 4))
    assert recomputed.saved == [] and len(recomputed.forward_inputs_needed) == 1
    assert len(stored.saved) == 1  # tanh(softplus(x)); of softplus nothing is read


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_softmax(axis: int) -> None:
    check(lambda b, x: op(b, "Softmax", [x], (2, 3, 4), axis=axis), lambda x: x.softmax(axis), (2, 3, 4))


def _softmax_by_hand(b: Builder, x: str) -> str:
    top = b.reduce("max", None, x, axes=[-1], keepdims=True)
    weight = b.elementwise(lambda v, m: sympy.exp(v - m), x, top)
    total = b.reduce("sum", None, weight, axes=[-1], keepdims=True)
    return str(b.elementwise(lambda e, s: e / s, weight, total))


def test_softmax_from_primitives() -> None:
    check(_softmax_by_hand, lambda x: x.softmax(-1), (2, 3, 4))


def test_layer_norm() -> None:
    check(
        lambda b, x, w, c: op(b, "LayerNormalization", [x, w, c], (2, 3, 8), axis=-1, epsilon=1e-5),
        lambda x, w, c: F.layer_norm(x, (8,), w, c),
        (2, 3, 8),
        (8,),
        (8,),
    )


def _rms_norm(b: Builder, x: str, w: str) -> str:
    square = b.reduce("sum", lambda v: v * v, x, axes=[-1], keepdims=True)
    inverse = b.elementwise(lambda s: 1 / sympy.sqrt(s / 8 + sympy.Float(1e-6)), square)
    return str(b.elementwise(lambda v, r, g: v * r * g, x, inverse, w))


def test_rms_norm_stores_the_row_statistic_only() -> None:
    recomputed, _ = check(_rms_norm, lambda x, w: F.rms_norm(x, (8,), w, 1e-6), (2, 3, 8), (8,))
    sizes = [recomputed.forward.size(n) for n in recomputed.saved]
    assert sizes == [6]


def test_batch_norm_in_training() -> None:
    def build(b: Builder, x: str, w: str, c: str) -> str:
        mean, variance = b.constant(np.zeros(3)), b.constant(np.ones(3))
        return op(
            b, "BatchNormalization", [x, w, c, mean, variance], (4, 3, 5, 5), training_mode=1, epsilon=1e-5, extra=2
        )

    check(build, lambda x, w, c: F.batch_norm(x, None, None, w, c, training=True), (4, 3, 5, 5), (3,), (3,))


def test_batch_norm_in_evaluation() -> None:
    def build(b: Builder, x: str, w: str, c: str, m: str, v: str) -> str:
        return op(b, "BatchNormalization", [x, w, c, m, b.elementwise(sympy.exp, v)], (4, 3, 5, 5), epsilon=1e-5)

    def reference(x: Any, w: Any, c: Any, m: Any, v: Any) -> Any:
        w, c, m, v = (t[:, None, None] for t in (w, c, m, v.exp()))
        return (x - m) / torch.sqrt(v + 1e-5) * w + c

    check(build, reference, (4, 3, 5, 5), (3,), (3,), (3,), (3,))


def _dense(b: Builder, x: str, w: str, c: str) -> str:
    return str(b.elementwise(lambda u, v: u + v, b.matmul(x, b.transpose(w, [1, 0])), c))


def test_small_mlp() -> None:
    def build(b: Builder, x: str, w: str, c: str, v: str, d: str) -> str:
        hidden = b.elementwise(lambda u: scalar.maximum(u, 0), _dense(b, x, w, c))
        return str(b.reduce("sum", lambda u: u * u, _dense(b, hidden, v, d), axes=[0, 1]))

    def reference(x: Any, w: Any, c: Any, v: Any, d: Any) -> Any:
        return (F.linear(F.linear(x, w, c).relu(), v, d) ** 2).sum()

    check(build, reference, (5, 4), (6, 4), (6,), (3, 6), (3,))


def test_small_convolutional_net() -> None:
    def build(b: Builder, x: str, w: str, s: str, t: str, v: str) -> str:
        y = op(b, "Conv", [x, w], (2, 4, 8, 8), pads=[1, 1, 1, 1], strides=[1, 1], kernel_shape=[3, 3])
        mean, variance = b.constant(np.zeros(4)), b.constant(np.ones(4))
        y = op(b, "BatchNormalization", [y, s, t, mean, variance], (2, 4, 8, 8), training_mode=1, epsilon=1e-5, extra=2)
        y = op(b, "Relu", [y], (2, 4, 8, 8))
        y = op(b, "MaxPool", [y], (2, 4, 4, 4), kernel_shape=[2, 2], strides=[2, 2])
        y = op(b, "GlobalAveragePool", [y], (2, 4, 1, 1))
        return b.matmul(b.reshape(y, [2, 4]), v)

    def reference(x: Any, w: Any, s: Any, t: Any, v: Any) -> Any:
        y = F.batch_norm(F.conv2d(x, w, padding=1), None, None, s, t, training=True)
        return F.max_pool2d(y.relu(), 2).mean((2, 3)) @ v

    check(build, reference, (2, 3, 8, 8), (4, 3, 3, 3), (4,), (4,), (4, 5))


def _heads(b: Builder, x: str) -> str:
    return b.transpose(b.reshape(x, [2, 5, 2, 4]), [0, 2, 1, 3])


def test_attention_block() -> None:
    def build(b: Builder, x: str, w: str, o: str) -> str:
        qkv = b.matmul(x, w)
        q, k, v = (_heads(b, b.slice(qkv, [8 * n], [8 * n + 8], axes=[2])) for n in range(3))
        scores = b.matmul(q, b.transpose(k, [0, 1, 3, 2]), alpha=0.5)
        weights = op(b, "Softmax", [scores], (2, 2, 5, 5), axis=-1)
        joined = b.reshape(b.transpose(b.matmul(weights, v), [0, 2, 1, 3]), [2, 5, 8])
        return str(b.elementwise(lambda u, r: u + r, b.matmul(joined, o), x))

    def reference(x: Any, w: Any, o: Any) -> Any:
        q, k, v = (t.reshape(2, 5, 2, 4).transpose(1, 2) for t in (x @ w).split(8, -1))
        y = (0.5 * (q @ k.transpose(-1, -2))).softmax(-1) @ v
        return y.transpose(1, 2).reshape(2, 5, 8) @ o + x

    check(build, reference, (2, 5, 8), (8, 24), (8, 8))


def test_embedding_of_tokens() -> None:
    def build(b: Builder, w: str, k: str) -> str:
        return str(b.elementwise(sympy.tanh, op(b, "Gather", [w, k], (2, 3, 4), axis=0)))

    check(build, lambda w, k: F.embedding(k, w).tanh(), (7, 4), integers=[[[0, 6, 6], [1, 0, 6]]])


@pytest.mark.parametrize("axis", [0, 1])
def test_concat(axis: int) -> None:
    shape = (6, 4) if axis == 0 else (3, 8)
    check(
        lambda b, x, y: b.elementwise(sympy.exp, op(b, "Concat", [x, y], shape, axis=axis)),
        lambda x, y: torch.cat([x, y], axis).exp(),
        (3, 4),
        (3, 4),
    )


def test_pad() -> None:
    def build(b: Builder, x: str) -> str:
        pads = b.constant(np.array([0, 1, 2, 0]))
        return str(b.elementwise(sympy.exp, op(b, "Pad", [x, pads], (5, 5), mode="constant")))

    check(build, lambda x: F.pad(x, (1, 0, 0, 2)).exp(), (3, 4))

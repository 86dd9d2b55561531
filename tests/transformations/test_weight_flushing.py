"""Weights of a softmax that only products read, and those that others read, too."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from daceopt import optimized_module
from daceopt.ops.families.softmax import MULTIPLIED
from daceopt.transformations.coarse.weight_flushing import WeightFlushing
from tests.numerics import assert_within_rounding
from tests.transformations.graphs import Net, check, near_misses

B, S, D = 3, 8, 4


def _net() -> tuple[Net, str]:
    net = Net(s=(B, S, S), v=(B, S, D))
    return net, net.op("Softmax", net.s, axis=-1)


def test_softmax_that_a_product_reads() -> None:
    net, weights = _net()
    graph = net.done(net.op("MatMul", weights, net.v, shape=(B, S, D)))
    check(WeightFlushing(), graph, ["Softmax", "MatMul"])
    assert graph.operators()[0].attribute(MULTIPLIED) == 1


def test_elements_in_another_order() -> None:
    net, weights = _net()
    turned = net.op("Transpose", weights, shape=(B, S, S), perm=[0, 2, 1])
    dropped = net.op("Dropout", turned, net.const(0.0), shape=(B, S, S))
    check(WeightFlushing(), net.done(net.op("MatMul", dropped, net.v, shape=(B, S, D))), [
        "Softmax", "Transpose", "Dropout", "MatMul",
    ])  # fmt: skip


@pytest.mark.parametrize("reader", ["Log", "output", "Reshape of the output"])
def test_other_readers_see_each_weight(reader: str) -> None:
    net, weights = _net()
    y = net.op("MatMul", weights, net.v, shape=(B, S, D))
    if reader == "Log":
        other = net.op("Log", weights)
    elif reader == "output":
        other = weights
    else:
        other = net.op("Reshape", weights, net.const([B, S * S], np.int64), shape=(B, S * S))
    assert "expected products alone" in near_misses(WeightFlushing(), net.done(y, other))


class Masked(nn.Module):
    """Attention in one call, or with scores of its own form, as cosine attention has; it may show its weights."""

    def __init__(self, shows: bool, own: bool):
        super().__init__()
        self.scale, self.shows, self.own = nn.Parameter(torch.rand(2, 1, 1)), shows, own

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        if not self.own:
            return (nn.functional.scaled_dot_product_attention(q * self.scale, k, v, attn_mask=mask),)
        weights = (nn.functional.normalize(q, dim=-1) @ k.mT * self.scale + mask).softmax(-1)
        return (weights @ v, weights.log()) if self.shows else (weights @ v,)


@pytest.mark.parametrize("shows, own", [(False, True), (True, True), (False, False)])
def test_large_negative_masks(shows: bool, own: bool) -> None:
    """Results and gradients as near to float64 as rounding explains; logarithms are those of weights below 2^-100."""
    torch.manual_seed(0)
    model, inputs = Masked(shows, own), [torch.randn(2, 2, 16, 8, requires_grad=True) for _ in range(3)]
    mask = torch.zeros(16, 16)
    mask[:8, 8:], mask[8:, :8] = -80.0 if shows else -100.0, -80.0
    results = []
    for network, kind in ((model, torch.float64), (model, torch.float32), (None, torch.float32)):
        network = (
            optimized_module(model.float(), recipe="cpu", fallback="raise") if network is None else network.to(kind)
        )
        leaves = [x.detach().to(kind).requires_grad_() for x in inputs]
        outputs = network(*leaves, mask.to(kind))
        sum((y * torch.arange(y.shape[-1], dtype=kind)).sum() for y in outputs).backward()
        results.append([y.detach().numpy() for y in (*outputs, *(x.grad for x in leaves))])
    for exact, eager, ours in zip(*results, strict=True):
        assert_within_rounding(ours, exact, eager)

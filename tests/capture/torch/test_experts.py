"""Experts as transformers multiplies them: products of groups of rows, whose sizes only the data decide."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from daceopt import optimized_module
from tests.capture.torch.checking import check
from tests.numerics import assert_within_rounding

pytest.importorskip("transformers.integrations.moe", exc_type=ImportError)
ENDS = torch.tensor([6, 6, 20, 24], dtype=torch.int32)


def _product(x: torch.Tensor, w: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    return torch.ops.transformers.grouped_mm_fallback(x, w, ends)


def _by_group(x: torch.Tensor, w: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    return torch.cat([x[first:last] @ w[g] for g, (first, last) in enumerate(pairwise([0, *ends.tolist()]))])


def _operands(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(s, generator=generator, requires_grad=True) for s in shapes]


def test_experts_are_native_with_their_gradients() -> None:
    """Weights in columns and in rows, as models have both."""

    def experts(x: torch.Tensor, first: torch.Tensor, second: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        return _product(_product(x, first.transpose(-2, -1), ends).relu(), second, ends)

    check(experts, *_operands((24, 16), (4, 32, 16), (4, 32, 8)), ENDS)


def test_half_types_are_left_to_the_package() -> None:
    x, w = (v.detach().bfloat16() for v in _operands((24, 16), (4, 16, 8)))
    check(_product, x, w, ENDS, native=False, grad=False)


def test_factors_of_two_types_are_left_to_the_package() -> None:
    """Which has the error for them."""
    x, w = _operands((24, 16), (4, 16, 8))
    network = optimized_module(Experts(_product), recipe="cpu", fallback="silent")
    for call in (network, Experts(_product)):
        with pytest.raises(RuntimeError, match="same dtype"):
            call(x, w.double(), ENDS)


class Experts(torch.nn.Module):
    def __init__(self, product: Any) -> None:
        super().__init__()
        self.product = product

    def forward(self, x: torch.Tensor, w: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        return self.product(x, w, ends).tanh()


def test_second_derivatives() -> None:
    """The gradient of a gradient's norm."""
    x, w = _operands((24, 16), (4, 16, 8))

    def penalty(network: Any, x: torch.Tensor, w: torch.Tensor) -> list[np.ndarray]:
        (slope,) = torch.autograd.grad(network(x, w, ENDS).sum(), x, create_graph=True)
        return [g.detach().numpy() for g in torch.autograd.grad(slope.square().sum(), (x, w))]

    ours = penalty(optimized_module(Experts(_product), recipe="cpu", fallback="raise"), x, w)
    exact = penalty(Experts(_by_group), *(v.detach().double().requires_grad_() for v in (x, w)))
    for mine, true, near in zip(ours, exact, penalty(Experts(_by_group), x, w), strict=True):
        assert_within_rounding(mine, true, near)

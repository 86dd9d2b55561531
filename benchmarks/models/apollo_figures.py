"""The sub-graphs of APOLLO's figures 5 and 6 (Zhao et al., MLSys 2022) at the sizes of a training step of BERT-base, a
batch of 32 sequences of 128 tokens where time allows.

The figures are drawings: what its text does not say is taken from BERT, as in the tests of the partition.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import nn

Tensors = tuple[torch.Tensor, ...]
_TOKENS, _WIDTH, _ROWS, _LENGTH = 4096, 768, 12 * 1024, 128


class Figure(NamedTuple):
    """A sub-graph, its operands, and the microseconds that the paper's table 3 has for it (unfused, then without the
    layer it shows, then whole; on a V100)."""

    module: nn.Module
    operands: Callable[[], Sequence[torch.Tensor]]
    paper: str


class _Of(nn.Module):
    def __init__(self, function: Callable[..., Tensors]):
        super().__init__()
        self._function = function

    def forward(self, *operands: torch.Tensor) -> Tensors:
        return self._function(*operands)


def masked_softmax(scores: torch.Tensor, mask: torch.Tensor) -> Tensors:
    """Softmax over attention scores with a mask, in primitive operators."""
    masked = scores / 8 + mask
    e = torch.exp(masked - masked.amax(1, keepdim=True))
    return (e / e.sum(1, keepdim=True),)


def residual_norm(
    x: torch.Tensor, bias: torch.Tensor, residual: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor
) -> Tensors:
    """Bias, residual and layer normalization: two reductions along the rows."""
    h = x + bias + residual
    centred = h - h.mean(1, keepdim=True)
    variance = (centred * centred).mean(1, keepdim=True)
    return (centred * torch.rsqrt(variance + 1e-2) * scale + shift,)


def softmax_gradient(y: torch.Tensor, dy: torch.Tensor) -> Tensors:
    """The gradient of a softmax behind a scaling: the sum of each row goes back into it."""
    return (y * (dy - (y * dy).sum(1, keepdim=True)) / 8,)


def many_heads(x: torch.Tensor) -> Tensors:
    """Multi-head: one array and several branches that read it."""
    head = torch.tanh(x)
    return head, head.sum(1), (head * head).sum(0), head.T.contiguous() * 2


def two_pairs(step: torch.Tensor, rate: torch.Tensor, decay: torch.Tensor, other: torch.Tensor) -> Tensors:
    """Two branches that meet in a multiplication, and two that are independent of them."""
    return (1 - torch.exp(step)) * (rate * rate).sum(0, keepdim=True), torch.exp(decay), other.amax(1)


def cleaned_sums(start: torch.Tensor, *arrays: torch.Tensor) -> Tensors:
    """Each of seven branches cleans a sum that the tail adds up, and has a maximum of its own."""
    sums = [torch.where(torch.isnan(a), 0.0, a).sum() for a in arrays]
    total = torch.stack([torch.relu(s) for s in sums]).sum() + start
    return total, *(a.amax() for a in arrays)


def _normal(*shapes: tuple[int, ...]) -> Callable[[], Sequence[torch.Tensor]]:
    return lambda: [torch.randn(shape) for shape in shapes]


_SCORES, _HIDDEN, _ROW = (_ROWS, _LENGTH), (_TOKENS, _WIDTH), (_WIDTH,)
FIGURES = {
    "5(a)": Figure(_Of(masked_softmax), _normal(_SCORES, _SCORES), "527, 224, 98"),
    "5(b)": Figure(_Of(residual_norm), _normal(_HIDDEN, _ROW, _HIDDEN, _ROW, _ROW), "2018, 342, 221"),
    "5(c)": Figure(_Of(softmax_gradient), _normal(_SCORES, _SCORES), "1532, 233, 190"),
    "6(a)": Figure(_Of(many_heads), _normal((512, _WIDTH)), "249.8, 87.6, 85.6"),
    "6(b)": Figure(_Of(two_pairs), _normal((1,), (512,), (_WIDTH,), (512, _LENGTH)), "86.1, 4.46, 3.34"),
    "6(c)": Figure(_Of(cleaned_sums), _normal((), *((_WIDTH * (8 + k),) for k in range(7))), "97.6, 26.7, 7.85"),
}

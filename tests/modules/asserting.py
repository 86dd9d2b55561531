"""Modules that assert something of their numbers; in files of tests pytest would write these statements anew."""

from __future__ import annotations

import torch
from torch import nn


class Asserted(nn.Module):
    """Two assertions, of which the second keeps indices in their table."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)
        self.table = nn.Embedding(5, 2)

    def forward(self, x: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        h = self.norm(self.first(x))
        assert torch.isfinite(h).all(), "not finite"
        assert k.max() < 5
        return self.last(h) + self.table(k)


class Refused(nn.Module):
    """An assertion in a graph that is not compiled."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.sparse.mm(torch.eye(3).to_sparse(), x)
        assert (h > 0).all(), "below"
        return h


class ReadAsserted(nn.Module):
    """Assertions of numbers that are read out of tensors, whole ones and floats, behind a change of a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        assert k.max().item() < x.shape[1], "too long"
        mean = x.mean().item()
        assert abs(mean) <= 5.0
        assert -mean * 2 < 8, "too low"
        return x.tanh() * mean + k[:, None]


class Caught(nn.Module):
    """An assertion whose error is caught."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        try:
            assert x.mean().item() < 1
        except AssertionError:
            return x * 3
        return x.tanh()

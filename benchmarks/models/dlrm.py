"""Deep learning recommendation model (Naumov et al., 2019): embedded categories and dense features in pairs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import nn


def _mlp(sizes: Sequence[int], last: nn.Module) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1], last)


class Dlrm(nn.Module):
    """Dense features (batch, dense) and indices (tables, batch, per bag) -> click probability (batch, 1)."""

    def __init__(
        self,
        rows: Sequence[int] = (100_000,) * 8,
        dense: int = 13,
        bottom: Sequence[int] = (512, 256),
        top: Sequence[int] = (512, 256),
        size: int = 64,
    ) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(n, size) for n in rows)
        self.bottom = _mlp([dense, *bottom, size], nn.ReLU())
        vectors = len(rows) + 1
        first, second = torch.tril_indices(vectors, vectors, offset=-1)
        self.register_buffer("pairs", first * vectors + second)
        self.top = _mlp([size + len(first), *top, 1], nn.Sigmoid())

    def forward(self, dense: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        features = self.bottom(dense)
        bags = [table(bag).sum(1) for table, bag in zip(self.tables, indices)]
        vectors = torch.stack([features, *bags], dim=1)
        products = torch.bmm(vectors, vectors.transpose(1, 2))
        return self.top(torch.cat([features, products.flatten(1)[:, self.pairs]], dim=1))

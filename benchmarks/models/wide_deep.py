"""Wide & Deep learning (Cheng et al., DLRS 2016): a linear model beside a network, over embeddings."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from benchmarks.models.perceptron import perceptron


class WideDeep(nn.Module):
    """Indices (batch, fields) into one table of all fields, and weights (batch, fields) -> logits (batch)."""

    def __init__(
        self, rows: int = 184_965, fields: int = 39, size: int = 80, deep: Sequence[int] = (1024, 512, 256, 128)
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(rows, size)
        nn.init.normal_(self.embedding.weight, std=0.01)
        self.wide = nn.Embedding(rows, 1)
        self.bias = nn.Parameter(torch.zeros(1))
        self.deep = perceptron([fields * size, *deep, 1])

    def forward(self, indices: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        scale = weights.unsqueeze(-1)
        wide = (self.wide(indices) * scale).sum(1) + self.bias
        deep = self.deep((self.embedding(indices) * scale).flatten(1))
        return (wide + deep).squeeze(1)

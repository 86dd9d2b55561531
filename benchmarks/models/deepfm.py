"""DeepFM (Guo et al., IJCAI 2017): factorization machine and deep network over the same embeddings."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from benchmarks.models.perceptron import perceptron


class DeepFm(nn.Module):
    """Indices (batch, fields) into one table of all fields, and weights (batch, fields) -> logits (batch)."""

    def __init__(
        self, rows: int = 184_965, fields: int = 39, size: int = 80, deep: Sequence[int] = (1024, 512, 256, 128)
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(rows, size)
        nn.init.normal_(self.embedding.weight, std=0.01)
        self.linear = nn.Embedding(rows, 1)
        self.deep = perceptron([fields * size, *deep, 1])

    def forward(self, indices: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        scale = weights.unsqueeze(-1)
        first = (self.linear(indices) * scale).sum((1, 2))
        vectors = self.embedding(indices) * scale
        second = 0.5 * (vectors.sum(1).square() - vectors.square().sum(1)).sum(1)  # all pairs of fields
        return first + second + self.deep(vectors.flatten(1)).squeeze(1)

"""The Transformer (Vaswani et al., NeurIPS 2017): encoder and decoder for translation, with shared embeddings."""

from __future__ import annotations

import math

import torch
from torch import nn


class Translator(nn.Module):
    """Source (batch, n) and target tokens (batch, m) -> scores of the next target token (batch, m, vocabulary)."""

    def __init__(
        self,
        vocabulary: int = 36_560,
        size: int = 512,
        heads: int = 8,
        layers: int = 6,
        inner: int = 2048,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, size)
        nn.init.normal_(self.embedding.weight, std=size**-0.5)
        self.network = nn.Transformer(size, heads, layers, layers, inner, dropout=dropout, batch_first=True)
        self.scale = math.sqrt(size)
        angles = torch.arange(512)[:, None] / 10_000 ** (torch.arange(0, size, 2) / size)
        self.register_buffer("positions", torch.cat([angles.sin(), angles.cos()], 1), persistent=False)

    def _embed(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.embedding(tokens) * self.scale + self.positions[: tokens.shape[1]]

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1], device=target.device)
        states = self.network(self._embed(source), self._embed(target), tgt_mask=mask, tgt_is_causal=True)
        return states @ self.embedding.weight.T

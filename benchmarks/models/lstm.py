"""A language model with long short-term memory (Zaremba, Sutskever and Vinyals, 2014)."""

from __future__ import annotations

import torch
from torch import nn


class LstmLanguageModel(nn.Module):
    """Tokens (batch, length) -> logits of the next token (batch, length, vocabulary) and the final states."""

    def __init__(self, vocabulary: int = 10_000, size: int = 650, layers: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, size)
        self.lstm = nn.LSTM(size, size, layers, batch_first=True)
        self.head = nn.Linear(size, vocabulary)

    def forward(self, tokens: torch.Tensor) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        hidden, state = self.lstm(self.embedding(tokens))
        return self.head(hidden), state

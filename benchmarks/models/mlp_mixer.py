"""MLP-Mixer (Tolstikhin et al., 2021): products over patches and over channels take turns."""

from __future__ import annotations

import torch
from torch import nn


def _mlp(size: int, hidden: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(size, hidden), nn.GELU(), nn.Linear(hidden, size))


class _Block(nn.Module):
    def __init__(self, patches: int, channels: int, ratios: tuple[float, float]) -> None:
        super().__init__()
        self.token_norm, self.channel_norm = nn.LayerNorm(channels), nn.LayerNorm(channels)
        self.tokens = _mlp(patches, int(ratios[0] * channels))
        self.channels = _mlp(channels, int(ratios[1] * channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.tokens(self.token_norm(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.channel_norm(x))


class MlpMixer(nn.Module):
    """Image (batch, 3, size, size) -> class logits (batch, classes)."""

    def __init__(
        self, classes: int = 1000, size: int = 224, patch: int = 16, channels: int = 512, layers: int = 8
    ) -> None:
        super().__init__()
        patches = (size // patch) ** 2
        self.stem = nn.Conv2d(3, channels, patch, stride=patch)
        self.blocks = nn.Sequential(*(_Block(patches, channels, (0.5, 4)) for _ in range(layers)))
        self.norm = nn.LayerNorm(channels)
        self.head = nn.Linear(channels, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.blocks(self.stem(x).flatten(2).transpose(1, 2))
        return self.head(self.norm(x).mean(1))

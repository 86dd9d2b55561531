"""WaveNet (van den Oord et al., 2016): gated, dilated, causal convolutions with residual and skip connections."""

from __future__ import annotations

import torch
from torch import nn


class _Layer(nn.Module):
    def __init__(self, channels: int, skip: int, dilation: int) -> None:
        super().__init__()
        self.dilation = dilation
        self.gated = nn.Conv1d(channels, 2 * channels, 2, dilation=dilation)
        self.residual = nn.Conv1d(channels, channels, 1)
        self.skip = nn.Conv1d(channels, skip, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        signal, gate = self.gated(nn.functional.pad(x, (self.dilation, 0))).chunk(2, dim=1)
        h = torch.tanh(signal) * torch.sigmoid(gate)
        return x + self.residual(h), self.skip(h)


class WaveNet(nn.Module):
    """Quantised samples (batch, time) -> logits of the next sample (batch, levels, time)."""

    def __init__(
        self, levels: int = 256, channels: int = 64, skip: int = 256, layers: int = 10, stacks: int = 2
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(levels, channels)
        self.layers = nn.ModuleList(_Layer(channels, skip, 2**k) for _ in range(stacks) for k in range(layers))
        self.head = nn.Sequential(nn.ReLU(), nn.Conv1d(skip, skip, 1), nn.ReLU(), nn.Conv1d(skip, levels, 1))

    def forward(self, samples: torch.Tensor) -> torch.Tensor:
        x = self.embedding(samples).transpose(1, 2)
        skipped = []
        for layer in self.layers:
            x, skip = layer(x)
            skipped.append(skip)
        return self.head(torch.stack(skipped).sum(0))

"""DenseNet-121 (Huang et al., 2017): in a block, each layer reads the results of all before it."""

from __future__ import annotations

import torch
from torch import nn


def _convolution(inputs: int, outputs: int, size: int) -> nn.Sequential:
    conv = nn.Conv2d(inputs, outputs, size, padding=size // 2, bias=False)
    return nn.Sequential(nn.BatchNorm2d(inputs), nn.ReLU(), conv)


class _Block(nn.Module):
    def __init__(self, layers: int, channels: int, growth: int) -> None:
        super().__init__()
        inputs = [channels + k * growth for k in range(layers)]
        self.layers = nn.ModuleList(
            nn.Sequential(_convolution(n, 4 * growth, 1), _convolution(4 * growth, growth, 3)) for n in inputs
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features = [x]
        for layer in self.layers:
            features.append(layer(torch.cat(features, 1)))
        return torch.cat(features, 1)


class DenseNet(nn.Module):
    """[N, 3, H, W] -> [N, 1000]."""

    def __init__(self, blocks: tuple[int, ...] = (6, 12, 24, 16), growth: int = 32, channels: int = 64) -> None:
        super().__init__()
        stem = nn.Conv2d(3, channels, 7, 2, 3, bias=False)
        parts: list[nn.Module] = [stem, nn.BatchNorm2d(channels), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
        for k, layers in enumerate(blocks):
            parts.append(_Block(layers, channels, growth))
            channels += layers * growth
            if k < len(blocks) - 1:
                parts += [_convolution(channels, channels // 2, 1), nn.AvgPool2d(2)]
                channels //= 2
        self.features = nn.Sequential(*parts, nn.BatchNorm2d(channels), nn.ReLU())
        self.last = nn.Linear(channels, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.features(x).mean((2, 3)))

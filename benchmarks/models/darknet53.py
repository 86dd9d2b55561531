"""Darknet-53, the backbone of YOLOv3 (Redmon and Farhadi, 2018): residual blocks of a 1x1 and a 3x3 convolution."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn


def _unit(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Sequential:
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.LeakyReLU(0.1))


class _Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(_unit(channels, channels // 2, 1), _unit(channels // 2, channels, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.body(x)


class Darknet53(nn.Module):
    """Images (batch, 3, height, width), edges multiples of 32 -> class scores (batch, classes)."""

    def __init__(self, classes: int = 1000, width: int = 32, blocks: Sequence[int] = (1, 2, 8, 8, 4)) -> None:
        super().__init__()
        layers: list[nn.Module] = [_unit(3, width, 3)]
        for count in blocks:
            layers += [_unit(width, 2 * width, 3, 2), *(_Residual(2 * width) for _ in range(count))]
            width *= 2
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(width, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(images).mean((2, 3)))

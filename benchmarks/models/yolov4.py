"""YOLOv4 (Bochkovskiy, Wang and Liao, 2020): CSPDarknet53, spatial pyramid pooling, path aggregation, three heads."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn


class _Conv(nn.Sequential):
    """Convolution that keeps the size (divided by ``stride``), batch norm, activation."""

    def __init__(self, inputs: int, outputs: int, size: int, stride: int = 1, act: type[nn.Module] = nn.Mish) -> None:
        super().__init__(
            nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False), nn.BatchNorm2d(outputs), act()
        )


class _Leaky(nn.LeakyReLU):
    def __init__(self) -> None:
        super().__init__(0.1)


class _Residual(nn.Module):
    def __init__(self, channels: int, hidden: int) -> None:
        super().__init__()
        self.body = nn.Sequential(_Conv(channels, hidden, 1), _Conv(hidden, channels, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.body(x)


class _Stage(nn.Module):
    """Halve the size, then let half of the channels pass by the residual blocks (cross-stage partial connections)."""

    def __init__(self, inputs: int, outputs: int, blocks: int, first: bool = False) -> None:
        super().__init__()
        part = outputs if first else outputs // 2
        self.down = _Conv(inputs, outputs, 3, 2)
        self.passing, self.entry = _Conv(outputs, part, 1), _Conv(outputs, part, 1)
        hidden = outputs // 2 if first else part
        self.blocks = nn.Sequential(*(_Residual(part, hidden) for _ in range(blocks)), _Conv(part, part, 1))
        self.merge = _Conv(2 * part, outputs, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.down(x)
        return self.merge(torch.cat([self.blocks(self.entry(x)), self.passing(x)], 1))


def _alternating(inputs: int, channels: int, count: int) -> nn.Sequential:
    """1x1 and 3x3 convolutions in turn; the last gives ``channels``."""
    layers, width = [], inputs
    for k in range(count):
        outputs = 2 * channels if k % 2 else channels
        layers.append(_Conv(width, outputs, 3 if k % 2 else 1, act=_Leaky))
        width = outputs
    return nn.Sequential(*layers)


class _PyramidPooling(nn.Module):
    """Maxima over three window sizes beside the input."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([*(nn.functional.max_pool2d(x, k, 1, k // 2) for k in (13, 9, 5)), x], 1)


class YoloV4(nn.Module):
    """Image (batch, 3, height, width), both sizes multiples of 32 -> raw predictions of strides 8, 16 and 32, each
    (batch, 3 * (5 + classes), height / stride, width / stride).
    """

    def __init__(self, classes: int = 80, width: int = 32, depths: Sequence[int] = (1, 2, 8, 8, 4)) -> None:
        super().__init__()
        widths = [width * 2**k for k in range(6)]
        c3, c4, c5 = (w // 2 for w in widths[3:])
        self.stem = _Conv(3, width, 3)
        self.stages = nn.ModuleList(
            _Stage(i, o, n, first=k == 0) for k, (i, o, n) in enumerate(zip(widths, widths[1:], depths))
        )
        self.pyramid = nn.Sequential(_alternating(2 * c5, c5, 3), _PyramidPooling(), _alternating(4 * c5, c5, 3))
        self.rise5, self.rise4 = _Conv(c5, c4, 1, act=_Leaky), _Conv(c4, c3, 1, act=_Leaky)
        self.side4, self.side3 = _Conv(2 * c4, c4, 1, act=_Leaky), _Conv(2 * c3, c3, 1, act=_Leaky)
        self.merge4, self.merge3 = _alternating(2 * c4, c4, 5), _alternating(2 * c3, c3, 5)
        self.fall3, self.fall4 = _Conv(c3, c4, 3, 2, _Leaky), _Conv(c4, c5, 3, 2, _Leaky)
        self.out4, self.out5 = _alternating(2 * c4, c4, 5), _alternating(2 * c5, c5, 5)
        self.heads = nn.ModuleList(
            nn.Sequential(_Conv(c, 2 * c, 3, act=_Leaky), nn.Conv2d(2 * c, 3 * (5 + classes), 1)) for c in (c3, c4, c5)
        )

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        x = self.stem(x)
        features = []
        for stage in self.stages:
            x = stage(x)
            features.append(x)
        p5 = self.pyramid(features[4])
        p4 = self.merge4(
            torch.cat([self.side4(features[3]), nn.functional.interpolate(self.rise5(p5), scale_factor=2.0)], 1)
        )
        p3 = self.merge3(
            torch.cat([self.side3(features[2]), nn.functional.interpolate(self.rise4(p4), scale_factor=2.0)], 1)
        )
        n4 = self.out4(torch.cat([self.fall3(p3), p4], 1))
        n5 = self.out5(torch.cat([self.fall4(n4), p5], 1))
        return [head(n) for head, n in zip(self.heads, (p3, n4, n5))]

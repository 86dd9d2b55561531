"""FCN-8s (Long, Shelhamer and Darrell, 2015): VGG's features of three strides, scored, upsampled and added."""

from __future__ import annotations

import torch
from torch import nn

_VGG_16 = (2, 2, 3, 3, 3)  # convolutions before each pooling


def _stage(inputs: int, outputs: int, count: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for k in range(count):
        layers += [nn.Conv2d(outputs if k else inputs, outputs, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.MaxPool2d(2, ceil_mode=True))


class Fcn8s(nn.Module):
    """Image (batch, 3, height, width) -> class logits of that size; both sizes divide by 32."""

    def __init__(self, classes: int = 21, width: int = 64, hidden: int = 4096) -> None:
        super().__init__()
        widths = [width, 2 * width, 4 * width, 8 * width, 8 * width]
        self.stages = nn.ModuleList(_stage(i, o, n) for i, o, n in zip([3, *widths], widths, _VGG_16))
        self.classifier = nn.Sequential(
            nn.Conv2d(widths[-1], hidden, 7, padding=3),
            nn.ReLU(),
            nn.Dropout(),
            nn.Conv2d(hidden, hidden, 1),
            nn.ReLU(),
            nn.Dropout(),
            nn.Conv2d(hidden, classes, 1),
        )
        self.score4, self.score3 = nn.Conv2d(widths[3], classes, 1), nn.Conv2d(widths[2], classes, 1)
        self.double5, self.double4 = (nn.ConvTranspose2d(classes, classes, 4, 2, 1, bias=False) for _ in range(2))
        self.upsample = nn.ConvTranspose2d(classes, classes, 16, 8, 4, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pools = []
        for stage in self.stages:
            x = stage(x)
            pools.append(x)
        x = self.double5(self.classifier(x)) + self.score4(pools[3])
        return self.upsample(self.double4(x) + self.score3(pools[2]))

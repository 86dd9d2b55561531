"""U-Net (Ronneberger, Fischer and Brox, 2015), padded so that the result has the image's size."""

from __future__ import annotations

import torch
from torch import nn


def _block(inputs: int, outputs: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for channels in (inputs, outputs):
        layers += [nn.Conv2d(channels, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    """Image (batch, 3, height, width) -> class logits (batch, classes, height, width); both sizes divide by
    2**depth.
    """

    def __init__(self, classes: int = 2, width: int = 64, depth: int = 4) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(depth + 1)]
        self.down = nn.ModuleList(_block(i, o) for i, o in zip([3, *widths[:-2]], widths[:-1]))
        self.bottom = _block(widths[-2], widths[-1])
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * w, w, 2, stride=2) for w in reversed(widths[:-1]))
        self.merge = nn.ModuleList(_block(2 * w, w) for w in reversed(widths[:-1]))
        self.pool = nn.MaxPool2d(2)
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skipped = []
        for block in self.down:
            x = block(x)
            skipped.append(x)
            x = self.pool(x)
        x = self.bottom(x)
        for up, merge in zip(self.up, self.merge):
            x = merge(torch.cat([skipped.pop(), up(x)], dim=1))
        return self.head(x)

"""The models that Rausch et al. (DaCeML, ICS 2022) optimize by hand, as their authors write them, without dropout."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 (its usual name)


class Mish(nn.Module):
    """Appendix B.1."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.tanh(F.softplus(x))


class Swish(nn.Module):
    """x sigmoid(x), of the operators that ONNX has."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.sigmoid(x)


class MBConv(nn.Module):
    """The first block of EfficientNet-B0 (section 6.3), with its padding apart as in ``efficientnet_pytorch``:
    [N, channels, H, W] -> [N, outputs, H, W]."""

    def __init__(self, channels: int = 32, outputs: int = 16, squeezed: int = 8):
        super().__init__()
        self.pad = nn.ZeroPad2d(1)
        self.depthwise = nn.Conv2d(channels, channels, 3, groups=channels, bias=False)
        self.norm0 = nn.BatchNorm2d(channels, eps=1e-3, momentum=0.01)
        self.reduce = nn.Conv2d(channels, squeezed, 1)
        self.expand = nn.Conv2d(squeezed, channels, 1)
        self.project = nn.Conv2d(channels, outputs, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs, eps=1e-3, momentum=0.01)
        self.swish = Swish()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.swish(self.norm0(self.depthwise(self.pad(x))))
        weights = self.expand(self.swish(self.reduce(F.adaptive_avg_pool2d(x, 1))))
        return self.norm1(self.project(torch.sigmoid(weights) * x))


class BertLayer(nn.Module):
    """A layer of BERT (section 6.4), attention by products, softmax and permutations: [N, length, width] -> the same.

    ``mixed``: products in bfloat16, by autocast.
    """

    def __init__(self, width: int = 1024, heads: int = 16, inner: int = 4096, mixed: bool = True):
        super().__init__()
        self.heads, self.mixed = heads, mixed
        self.query, self.key, self.value, self.output = (nn.Linear(width, width) for _ in range(4))
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=self.mixed):
            x = self.norm1(x + self.output(self._attention(x)))
            return self.norm2(x + self.down(F.gelu(self.up(x))))

    def _attention(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (self._by_head(f(x)) for f in (self.query, self.key, self.value))
        weights = torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]), -1)
        return (weights @ v).permute(0, 2, 1, 3).reshape(x.shape)

    def _by_head(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        return x.view(batch, length, self.heads, width // self.heads).permute(0, 2, 1, 3)

"""Conformer (Gulati et al., 2020), the encoder: attention and convolution between two half feed-forward layers."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class _FeedForward(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(size), nn.Linear(size, 4 * size), nn.Linear(4 * size, size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(functional.silu(self.up(self.norm(x))))


class _Attention(nn.Module):
    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.norm, self.heads = nn.LayerNorm(size), heads
        self.qkv, self.out = nn.Linear(size, 3 * size), nn.Linear(size, size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, size = x.shape
        q, k, v = self.qkv(self.norm(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(q, k, v)
        return self.out(attended.transpose(1, 2).reshape(batch, length, size))


class _Convolution(nn.Module):
    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.norm, self.first, self.last = nn.LayerNorm(size), nn.Linear(size, 2 * size), nn.Linear(size, size)
        self.depthwise = nn.Conv1d(size, size, width, padding=width // 2, groups=size)
        self.batch_norm = nn.BatchNorm1d(size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = functional.glu(self.first(self.norm(x)), -1).transpose(1, 2)
        return self.last(functional.silu(self.batch_norm(self.depthwise(y))).transpose(1, 2))


class _Block(nn.Module):
    def __init__(self, size: int, heads: int, width: int) -> None:
        super().__init__()
        self.first, self.last = _FeedForward(size), _FeedForward(size)
        self.attention, self.convolution = _Attention(size, heads), _Convolution(size, width)
        self.norm = nn.LayerNorm(size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + 0.5 * self.first(x)
        x = x + self.attention(x)
        x = x + self.convolution(x)
        return self.norm(x + 0.5 * self.last(x))


class Conformer(nn.Module):
    """Frames after sub-sampling, [N, length, size] -> the same shape."""

    def __init__(self, layers: int = 16, size: int = 256, heads: int = 4, width: int = 31) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(_Block(size, heads, width) for _ in range(layers)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.blocks(x)

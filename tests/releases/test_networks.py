"""A network of each kind, called and trained with the release of PyTorch that is imported: within rounding of eager
PyTorch in float64."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional

from daceopt import optimized_module
from tests.numerics import assert_within_rounding

STEPS, RATE = 2, 0.1


class Residual(nn.Module):
    """Convolutions, batch normalization and a shortcut, as in ResNet."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
        self.left = nn.Sequential(nn.Conv2d(8, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        self.right = nn.Sequential(nn.Conv2d(16, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16))
        self.shortcut = nn.Sequential(nn.Conv2d(8, 16, 1, 2, bias=False), nn.BatchNorm2d(16))
        self.head = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        x = functional.relu(self.right(self.left(x)) + self.shortcut(x))
        return self.head(x.mean((2, 3)))


class Encoder(nn.Module):
    """PyTorch's own layers of a Transformer, with a mask of padding."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(x, src_key_padding_mask=x[..., 0] > 1.5).mean(1))


class Recurrent(nn.Module):
    """Two layers of LSTM, of which the last state is read."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.head = nn.LSTM(16, 12, 2, batch_first=True), nn.Linear(12, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(x)[1][0][-1])


class Block(nn.Module):
    """Attention to what came before, with rotated queries and keys, and a gated layer, as in Llama."""

    def __init__(self, width: int = 16, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.gate, self.up, self.down = nn.Linear(width, 32), nn.Linear(width, 32), nn.Linear(32, width)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norms[0](x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        q, k = _rotate(q, cos, sin), _rotate(k, cos, sin)
        attention = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attention.transpose(1, 2).flatten(2))
        y = self.norms[1](x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat([-b, a], -1) * sin


class Decoder(nn.Module):
    """Tokens, blocks, and the embedding once more as the last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 16)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.norm = nn.RMSNorm(16)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        angles = torch.arange(tokens.shape[1])[:, None] / 100.0 ** (torch.arange(4) / 4)
        angles = torch.cat([angles, angles], -1).to(x.dtype)
        for block in self.blocks:
            x = block(x, angles.cos(), angles.sin())
        return functional.linear(self.norm(x), self.embedding.weight).mean(1)


KINDS: dict[str, tuple[Callable[[], nn.Module], Callable[[], torch.Tensor]]] = {
    "residual": (Residual, lambda: torch.randn(3, 3, 16, 16)),
    "encoder": (Encoder, lambda: torch.randn(3, 7, 16)),
    "recurrent": (Recurrent, lambda: torch.randn(3, 7, 16)),
    "decoder": (Decoder, lambda: torch.randint(0, 11, (3, 7))),
}


# `make test` trains encoders in tests/models; other releases run all kinds
@pytest.mark.parametrize("kind", [pytest.param(k, marks=pytest.mark.breadth if k == "encoder" else ()) for k in KINDS])
def test_a_network_is_called_and_trained(kind: str) -> None:
    make, draw = KINDS[kind]
    model, batch = make(), [draw() for _ in range(STEPS)]
    exact = [x.double() if x.is_floating_point() else x for x in batch]
    eager, wide = copy.deepcopy(model), copy.deepcopy(model).double()
    ours = optimized_module(model, fallback="raise")
    for results in zip(_call(ours, batch), _call(wide, exact), _call(eager, batch), strict=True):
        assert_within_rounding(*results, ulps=64)
    for results in zip(_train(ours, batch), _train(wide, exact), _train(eager, batch), strict=True):
        assert_within_rounding(*results, ulps=64)


def _call(net: nn.Module, batch: list[torch.Tensor]) -> list[torch.Tensor]:
    net.eval()
    with torch.no_grad():
        return [net(x) for x in batch]


def _train(net: nn.Module, batch: list[torch.Tensor]) -> list[torch.Tensor]:
    """Each step's loss, then all parameters and buffers."""
    net.train()
    optimizer, losses = torch.optim.SGD(net.parameters(), lr=RATE), []
    for x in batch:
        losses.append(functional.cross_entropy(net(x), torch.arange(3)))
        optimizer.zero_grad()
        losses[-1].backward()
        optimizer.step()
    return [*losses, *(state.detach().clone() for state in net.state_dict().values())]

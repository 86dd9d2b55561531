"""The six networks of DisCo's evaluation (Yi et al., 2022, section 6.1), reduced: modules that compute a loss, batches.

Depths are the papers' for VGG-19 and ResNet-50; images, batches, vocabularies and the other depths are smaller, so that
a step is captured in seconds. Each docstring says what.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional

from benchmarks.models.lstm import LstmLanguageModel
from benchmarks.models.training import bert_base, translator


class Step(NamedTuple):
    """A module from a batch to its loss, and a batch."""

    module: nn.Module
    batch: tuple[torch.Tensor, ...]


class Classified(nn.Module):
    """The cross entropy of ``network``'s scores for the last tensor of a batch."""

    def __init__(self, network: nn.Module):
        super().__init__()
        self.network = network

    def forward(self, *batch: torch.Tensor) -> torch.Tensor:
        scores = self.network(*batch[:-1])
        return functional.cross_entropy(scores.flatten(0, -2), batch[-1].flatten())


class Vgg19(nn.Module):
    """Simonyan and Zisserman, 2015, configuration E: 16 convolutions, three products."""

    def __init__(
        self,
        classes: int = 1000,
        edge: int = 64,
        width: int = 64,
        inner: int = 4096,
        depths: Sequence[int] = (2, 2, 4, 4, 4),
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for k, count in enumerate(depths):
            for _ in range(count):
                layers += [nn.Conv2d(channels, width << min(k, 3), 3, padding=1), nn.ReLU()]
                channels = width << min(k, 3)
            layers.append(nn.MaxPool2d(2))
        flat = channels * (edge >> len(depths)) ** 2
        head = [nn.Flatten(), nn.Linear(flat, inner), nn.ReLU(), nn.Linear(inner, inner), nn.ReLU()]
        self.layers = nn.Sequential(*layers, *head, nn.Linear(inner, classes))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.layers(images)


class Bottleneck(nn.Module):
    def __init__(self, before: int, inner: int, stride: int) -> None:
        super().__init__()
        after = 4 * inner
        self.layers = nn.Sequential(
            *(nn.Conv2d(before, inner, 1, bias=False), nn.BatchNorm2d(inner), nn.ReLU()),
            *(nn.Conv2d(inner, inner, 3, stride, 1, bias=False), nn.BatchNorm2d(inner), nn.ReLU()),
            *(nn.Conv2d(inner, after, 1, bias=False), nn.BatchNorm2d(after)),
        )
        same = stride == 1 and before == after
        down = (nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))
        self.down = nn.Identity() if same else nn.Sequential(*down)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(self.layers(x) + self.down(x))


class ResNet50(nn.Module):
    """He et al., 2016."""

    def __init__(self, classes: int = 1000, width: int = 64, depths: Sequence[int] = (3, 4, 6, 3)) -> None:
        super().__init__()
        stem = [nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
        blocks: list[nn.Module] = []
        channels = width
        for k, count in enumerate(depths):
            for block in range(count):
                inner = width << k
                blocks.append(Bottleneck(channels, inner, 2 if k and not block else 1))
                channels = 4 * inner
        self.layers = nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.layers(images)


class HashedAttention(nn.Module):
    """Attention among tokens of a hash (Kitaev et al., Reformer, 2020, section 2): queries are keys, tokens are sorted
    by the hash of a random rotation, and attend to their own chunk and the one before it."""

    def __init__(self, size: int, heads: int, chunk: int) -> None:
        super().__init__()
        self.heads, self.chunk = heads, chunk
        self.query, self.value, self.out = (nn.Linear(size, size, bias=False) for _ in range(3))
        self.register_buffer("rotation", torch.randn(size // heads, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, size = x.shape
        split = (batch, length, self.heads, size // self.heads)
        query, value = (layer(x).view(split).transpose(1, 2) for layer in (self.query, self.value))
        rotated = query.detach() @ self.rotation
        order = torch.cat([rotated, -rotated], -1).argmax(-1).argsort(dim=-1, stable=True).unsqueeze(-1)
        where = order.expand(-1, -1, -1, split[3])
        chunks = (batch, self.heads, length // self.chunk, self.chunk, split[3])
        q, v = (t.gather(2, where).view(chunks) for t in (query, value))
        k = functional.normalize(q, dim=-1)
        k, v = (torch.cat([t, t.roll(1, 2)], 3) for t in (k, v))
        mixed = (q @ k.transpose(-1, -2) * split[3] ** -0.5).softmax(-1) @ v
        back = order.argsort(dim=2, stable=True).expand(-1, -1, -1, split[3])
        attended = mixed.reshape(batch, self.heads, length, split[3]).gather(2, back)
        return self.out(attended.transpose(1, 2).reshape(batch, length, size))


class Reformer(nn.Module):
    """Two streams that change in turn, as in the reversible network; all that is stored stays stored here."""

    def __init__(self, vocabulary: int, size: int, layers: int, heads: int = 4, chunk: int = 16) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, size)
        self.attention = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(size), HashedAttention(size, heads, chunk)) for _ in range(layers)
        )
        self.forwards = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(size), nn.Linear(size, 4 * size), nn.GELU(), nn.Linear(4 * size, size))
            for _ in range(layers)
        )
        self.head = nn.Linear(size, vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        one = other = self.embedding(tokens)
        for attention, forward in zip(self.attention, self.forwards):
            one = one + attention(other)
            other = other + forward(one)
        return self.head(one + other)


def _images(network: nn.Module, batch: int, edge: int, classes: int) -> Step:
    return Step(Classified(network), (torch.randn(batch, 3, edge, edge), torch.randint(0, classes, (batch,))))


def vgg19(batch: int = 8, edge: int = 64, classes: int = 1000, **sizes: Any) -> Step:
    """Batch 8 of 64x64 images, no dropout. ``sizes``: those of ``Vgg19``."""
    return _images(Vgg19(classes, edge, **sizes), batch, edge, classes)


def resnet50(batch: int = 8, edge: int = 64, classes: int = 1000, **sizes: Any) -> Step:
    """Batch 8 of 64x64 images. ``sizes``: those of ``ResNet50``."""
    return _images(ResNet50(classes, **sizes), batch, edge, classes)


def transformer(**sizes: Any) -> Step:
    """Base, 2 of 6 layers on each side, batch 8 of 64 tokens, vocabulary 10,000. ``sizes``: those of ``translator``."""
    example = translator(**sizes)
    return Step(example.module, example.batch)


class _Scores(nn.Module):
    def __init__(self, network: nn.Module):
        super().__init__()
        self.network = network

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.network(tokens)[0]


def _tokens(network: nn.Module, batch: int, length: int, vocabulary: int) -> Step:
    tokens, targets = torch.randint(0, vocabulary, (2, batch, length))
    return Step(Classified(network), (tokens, targets))


def rnnlm(batch: int = 8, length: int = 20, vocabulary: int = 10_000, size: int = 650) -> Step:
    """Two layers of LSTM, size 650, vocabulary 10,000, batch 8 of 20 tokens."""
    return _tokens(_Scores(LstmLanguageModel(vocabulary, size)), batch, length, vocabulary)


def bert(**sizes: Any) -> Step:
    """Base, 4 of 12 layers, batch 4 of 128 tokens. ``sizes``: those of ``bert_base``."""
    example = bert_base(**sizes)
    return Step(example.module, example.batch)


def reformer(
    batch: int = 4, length: int = 256, vocabulary: int = 10_000, size: int = 512, layers: int = 4, **sizes: Any
) -> Step:
    """Size 512, 4 layers of 4 heads, chunks of 16, vocabulary 10,000, batch 4 of 256 tokens. ``sizes``: others of
    ``Reformer``."""
    return _tokens(Reformer(vocabulary, size, layers, **sizes), batch, length, vocabulary)


STEPS: dict[str, Callable[[], Step]] = {
    "VGG-19": vgg19,
    "ResNet-50": resnet50,
    "Transformer": transformer,
    "RNNLM": rnnlm,
    "BERT": bert,
    "Reformer": reformer,
}

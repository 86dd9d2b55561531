"""The five networks of APOLLO's table 4 (Zhao et al., MLSys 2022) with loss, optimizer and a batch: what one training
step needs. Sizes are smaller than the paper's, so that a step on two cores takes about a second; batches are stated.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional

from benchmarks.models.darknet53 import Darknet53
from benchmarks.models.deepfm import DeepFm
from benchmarks.models.transformer import Translator
from benchmarks.models.wide_deep import WideDeep

Tensors = tuple[torch.Tensor, ...]
Optimizer = Callable[..., torch.optim.Optimizer]


class Training(NamedTuple):
    """A module from a batch to its loss, the optimizer of its parameters, and a batch."""

    module: nn.Module
    optimizer: Optimizer
    batch: Tensors


class _Loss(nn.Module):
    """``network`` on all of a batch but its last tensor, the targets, and the loss of both."""

    def __init__(self, network: nn.Module, loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]):
        super().__init__()
        self.network, self.loss = network, loss

    def forward(self, *batch: torch.Tensor) -> torch.Tensor:
        return self.loss(self.network(*batch[:-1]), batch[-1])


def _tokens_loss(scores: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(scores.flatten(0, 1), targets.flatten())


class _Scores(nn.Module):
    def __init__(self, network: nn.Module):
        super().__init__()
        self.network = network

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.network(tokens).logits


def bert_base(batch: int = 4, length: int = 128, layers: int = 4, **config: Any) -> Training:
    """BERT-base with 4 of its 12 layers, masked language model, batch 4 of 128 tokens (paper: 32 and 64).

    ``config``: what else of ``BertConfig`` is another."""
    from transformers import BertConfig, BertForMaskedLM

    chosen = BertConfig(num_hidden_layers=layers, **config)
    network = BertForMaskedLM(chosen)
    tokens, targets = torch.randint(0, chosen.vocab_size, (2, batch, length))
    return Training(_Loss(_Scores(network), _tokens_loss), torch.optim.AdamW, (tokens, targets))


def translator(batch: int = 8, length: int = 64, vocabulary: int = 10_000, layers: int = 2, **sizes: Any) -> Training:
    """Transformer base with 2 of 6 layers on each side, batch 8 of 64 tokens, vocabulary 10,000 (paper: 8 and 16).

    ``sizes``: others of ``Translator``."""
    network = Translator(vocabulary, layers=layers, **sizes)
    source, target, targets = torch.randint(0, vocabulary, (3, batch, length))
    return Training(_Loss(network, _tokens_loss), torch.optim.Adam, (source, target, targets))


def _clicks(network: nn.Module, rows: int, batch: int) -> Training:
    indices, weights = torch.randint(0, rows, (batch, 39)), torch.rand(batch, 39)
    targets = torch.randint(0, 2, (batch,)).float()
    return Training(
        _Loss(network, functional.binary_cross_entropy_with_logits), torch.optim.Adam, (indices, weights, targets)
    )


def wide_deep(batch: int = 2000) -> Training:
    """Wide & Deep over 39 fields, 20,000 rows, batch 2,000 (paper: 16,000 and 32,000)."""
    return _clicks(WideDeep(20_000), 20_000, batch)


def deepfm(batch: int = 2000) -> Training:
    """DeepFM over 39 fields, 20,000 rows, batch 2,000 (paper: 8,192 and 16,384)."""
    return _clicks(DeepFm(20_000), 20_000, batch)


def darknet53(batch: int = 4, edge: int = 128) -> Training:
    """Darknet-53, batch 4 of 128x128 images (paper: YOLOv3, 4 and 8)."""
    images, targets = torch.randn(batch, 3, edge, edge), torch.randint(0, 1000, (batch,))

    def make(parameters: object) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)

    return Training(_Loss(Darknet53(), functional.cross_entropy), make, (images, targets))


TRAININGS: dict[str, Callable[[], Training]] = {
    f.__name__: f for f in (bert_base, translator, wide_deep, darknet53, deepfm)
}

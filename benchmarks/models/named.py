"""Models with inputs by name, as processes of their own ask for them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from benchmarks.models.suite import SUITE
from benchmarks.models.training import TRAININGS
from daceopt.commands import demo

Example = tuple[nn.Module, tuple[torch.Tensor, ...]]


def tiny() -> Example:
    """So little work that a call costs what surrounds it: (4, 8) -> (4, 8)."""
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh()), (torch.randn(4, 8),)


def stack(layers: int, size: int = 64) -> Example:
    """A BERT encoder of ``layers`` equal layers and little arithmetic: batch 2, length 16."""
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=100,
        hidden_size=size,
        num_hidden_layers=layers,
        num_attention_heads=4,
        intermediate_size=4 * size,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return BertModel(config), (torch.randint(0, config.vocab_size, (2, 16)),)


def _module_and_batch(name: str) -> Example:
    training = TRAININGS[name]()
    return training.module, training.batch


MODELS: dict[str, Callable[[], Example]] = {
    "tiny": tiny,
    "bert": demo.bert,
    "resnet": demo.resnet,
    "novel": demo.novel,
    **{name: partial(_module_and_batch, name) for name in TRAININGS},
    **{f"suite/{name}": make for name, make in SUITE.items()},
}

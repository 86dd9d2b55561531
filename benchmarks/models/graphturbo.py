"""The networks of GraphTurbo's evaluation (Zhao et al., OSDI 2023, table 2) with random weights, and what it reports.

Configurations are those that the paper names; where it names none: the base size of BERT and of the Vision Transformer,
26 tables of 10,000 rows for DLRM (MLPerf's have up to 40 million; what is read of them is the same), the encoder of
Conformer (M) on 256 frames.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from benchmarks.models.conformer import Conformer
from benchmarks.models.densenet import DenseNet
from benchmarks.models.dlrm import Dlrm

Inputs = tuple[torch.Tensor, ...]


class First(nn.Module):
    """The one result that counts of a model that returns several."""

    def __init__(self, model: nn.Module, result: str) -> None:
        super().__init__()
        self.model, self.result = model, result

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = getattr(self.model(*inputs), self.result)
        return result


@dataclass(frozen=True)
class Network:
    """``make()``: the module; ``inputs(batch)``. From the paper: the batch of all clusters, and that of one cluster for
    TVM and for GraphTurbo (table 2); results in DDR, LLB and L1 (table 3), TVM's in DDR; seconds to compile (table 4).
    """

    title: str
    make: Callable[[], nn.Module]
    inputs: Callable[[int], Inputs]
    batch: int
    layer_wise: int
    instances: int
    placed: tuple[int, int, int]
    kernels: int
    compiled: int


def _images(batch: int) -> Inputs:
    return (torch.randn(batch, 3, 224, 224),)


def _tokens(length: int, batch: int) -> Inputs:
    return (torch.randint(0, 30_000, (batch, length)),)


def _bert() -> nn.Module:
    from transformers import BertConfig, BertModel

    return First(BertModel(BertConfig(), add_pooling_layer=False), "last_hidden_state")


def _resnet() -> nn.Module:
    from transformers import ResNetConfig, ResNetForImageClassification

    return First(ResNetForImageClassification(ResNetConfig(num_labels=1000)), "logits")


def _mobilenet() -> nn.Module:
    from transformers import MobileNetV2Config, MobileNetV2ForImageClassification

    return First(MobileNetV2ForImageClassification(MobileNetV2Config(num_labels=1000)), "logits")


def _vit() -> nn.Module:
    from transformers import ViTConfig, ViTModel

    return First(ViTModel(ViTConfig(), add_pooling_layer=False), "last_hidden_state")


def _dlrm() -> nn.Module:
    return Dlrm((10_000,) * 26, bottom=(512, 256), top=(1024, 1024, 512, 256), size=128)


def _queries(batch: int) -> Inputs:
    return torch.randn(batch, 13), torch.randint(0, 10_000, (26, batch, 1))


NETWORKS = {
    "A": Network("ResNet-50", _resnet, _images, 64, 2, 16, (1, 11, 284), 58, 139),
    "B": Network("BERT-128", _bert, partial(_tokens, 128), 32, 4, 8, (1, 0, 305), 242, 199),
    "C": Network("BERT-256", _bert, partial(_tokens, 256), 16, 2, 4, (1, 110, 240), 242, 224),
    "D": Network("BERT-384", _bert, partial(_tokens, 384), 8, 1, 2, (1, 75, 967), 515, 699),
    "E": Network("BERT-512", _bert, partial(_tokens, 512), 8, 1, 2, (1, 76, 337), 242, 282),
    "F": Network("DLRM", _dlrm, _queries, 1024, 64, 256, (0, 0, 76), 76, 23),
    "G": Network("MobileNetV2", _mobilenet, _images, 128, 2, 32, (0, 3, 608), 56, 248),
    "H": Network("Vision Transformer", _vit, _images, 32, 4, 8, (24, 60, 340), 214, 340),
    "I": Network("DenseNet-121", DenseNet, _images, 32, 4, 8, (0, 3, 389), 247, 189),
    "J": Network("Conformer", Conformer, lambda n: (torch.randn(n, 256, 256),), 12, 1, 3, (4, 813, 250), 1054, 296),
}

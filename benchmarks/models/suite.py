"""Fifteen networks at sizes of which a training step takes up to seconds on two cores: what a recipe is judged by.

Weights are random and dropout is off, so that contenders compute the same. Each gives one tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Example = tuple[nn.Module, tuple[torch.Tensor, ...]]
_NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


class _Whole(nn.Module):
    """A model's results as one tensor: a named one, or all side by side."""

    def __init__(self, model: nn.Module, name: str | None = None) -> None:
        super().__init__()
        self.model, self.name = model, name

    def forward(self, *arguments: torch.Tensor) -> torch.Tensor:
        outputs = self.model(*arguments)
        if self.name is not None:
            return getattr(outputs, self.name)  # type: ignore[no-any-return]
        return torch.cat([part.flatten(1) for part in outputs], 1) if isinstance(outputs, list) else outputs[0]


def _image(batch: int, edge: int) -> tuple[torch.Tensor, ...]:
    return (torch.randn(batch, 3, edge, edge),)


def _vision(kind: str, batch: int, edge: int, **options: Any) -> Example:
    import transformers

    config = getattr(transformers, f"{kind}Config")(**options)
    return _Whole(getattr(transformers, f"{kind}ForImageClassification")(config), "logits"), _image(batch, edge)


def resnet50() -> Example:
    return _vision("ResNet", 8, 224)


def wide_resnet50() -> Example:
    """Bottlenecks of twice the width."""
    example = _vision("ResNet", 4, 224, hidden_sizes=[256, 512, 1024, 2048], downsample_in_bottleneck=False)
    for block in [m for m in example[0].modules() if type(m).__name__ == "ResNetBottleNeckLayer"]:
        reduce, spatial, expand = block.layer
        _widen(reduce, inputs=1, outputs=2)
        _widen(spatial, inputs=2, outputs=2)
        _widen(expand, inputs=2, outputs=1)
    return example


def _widen(layer: nn.Module, inputs: int, outputs: int) -> None:
    """Replace the convolution and normalization of a layer by ones with as many times the channels."""
    old: nn.Conv2d = layer.convolution
    sizes = old.in_channels * inputs, old.out_channels * outputs, old.kernel_size
    layer.convolution = nn.Conv2d(*sizes, stride=old.stride, padding=old.padding, bias=False)
    layer.normalization = nn.BatchNorm2d(old.out_channels * outputs)


def mobilenet_v2() -> Example:
    return _vision("MobileNetV2", 8, 224, classifier_dropout_prob=0.0)


def efficientnet() -> Example:
    options = {"width_coefficient": 1.0, "depth_coefficient": 1.0, "hidden_dim": 1280, "image_size": 224}
    return _settle(_vision("EfficientNet", 8, 224, **options, dropout_rate=0.0, drop_connect_rate=0.0))


@torch.no_grad()
def _settle(example: Example) -> Example:
    """With normalizations that let images pass as they are, and the running statistics of these. Those of a new network
    (factors drawn with a deviation of 0.02) let images and gradients fade from layer to layer into numbers that are no
    normal ones, for which some CPUs take a hundred times as long."""
    model, images = example
    layers = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    momenta = [layer.momentum for layer in layers]
    for layer in layers:
        layer.reset_parameters()
        layer.momentum = 1.0
    model.train()(*images)
    for layer, momentum in zip(layers, momenta, strict=True):
        layer.momentum = momentum
    return example


def mlp_mixer() -> Example:
    from benchmarks.models.mlp_mixer import MlpMixer

    return MlpMixer(), _image(8, 224)


def fcn8s() -> Example:
    from benchmarks.models.fcn8s import Fcn8s

    model = Fcn8s(width=32, hidden=512)
    for layer in model.modules():
        if isinstance(layer, nn.Dropout):
            layer.p = 0.0
    return model, _image(2, 256)


def wavenet() -> Example:
    from benchmarks.models.wavenet import WaveNet

    return WaveNet(), (torch.randint(0, 256, (4, 1024)),)


def bert_layer() -> Example:
    """One layer of BERT-large, length 512."""
    layer = nn.TransformerEncoderLayer(1024, 16, 4096, dropout=0.0, activation="gelu", batch_first=True)
    return layer, (torch.randn(4, 512, 1024),)


def dlrm() -> Example:
    """8 tables, bags of 10."""
    from benchmarks.models.dlrm import Dlrm

    model = Dlrm(rows=(10_000,) * 8, bottom=(512, 256), top=(512, 256), size=64)
    return model, (torch.randn(2048, 13), torch.randint(0, 10_000, (8, 2048, 10)))


def yolov4() -> Example:
    from benchmarks.models.yolov4 import YoloV4

    return _Whole(YoloV4(width=16)), _image(2, 256)


def unet() -> Example:
    from benchmarks.models.unet import UNet

    return UNet(width=32), _image(2, 256)


def gpt2() -> Example:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_embd": 512, "n_layer": 4, "n_head": 8, "n_positions": 256, "vocab_size": 8192}
    sizes |= {"bos_token_id": 1, "eos_token_id": 2}
    config = GPT2Config(**sizes, use_cache=False, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    return _Whole(GPT2LMHeadModel(config), "logits"), (torch.randint(0, 8192, (4, 256)),)


def vit() -> Example:
    sizes = {"hidden_size": 384, "num_hidden_layers": 4, "num_attention_heads": 6, "intermediate_size": 1536}
    return _vision("ViT", 8, 224, **sizes, **_NO_DROPOUT)


def convnext() -> Example:
    return _vision("ConvNext", 8, 128, hidden_sizes=[48, 96, 192, 384], depths=[2, 2, 4, 2])


def lstm() -> Example:
    """A language model, 16 sequences of 64."""
    from benchmarks.models.lstm import LstmLanguageModel

    return _Whole(LstmLanguageModel(8192, 512)), (torch.randint(0, 8192, (16, 64)),)


SUITE: dict[str, Callable[[], Example]] = {
    make.__name__: make
    for make in (
        resnet50,
        wide_resnet50,
        mobilenet_v2,
        efficientnet,
        mlp_mixer,
        fcn8s,
        wavenet,
        bert_layer,
        dlrm,
        yolov4,
        unet,
        gpt2,
        vit,
        convnext,
        lstm,
    )
}

"""Whole networks at sizes that train in milliseconds a step, each with a loss and batches that it can learn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional

from tests.models.zoo import ENCODER, VOCABULARY

_BATCHES = 4
_CLASSES = 5
_TEXT = {**ENCODER, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


class Network(NamedTuple):
    """A model, the loss of its result and the targets (None: it computes that itself), and batches: inputs, then one
    target. ``rates``: learning rates for SGD and AdamW at which it learns, and at which roundings do not grow from step
    to step."""

    model: nn.Module
    loss: Callable[[Any, torch.Tensor], torch.Tensor] | None
    batches: list[tuple[torch.Tensor, ...]]
    rates: tuple[float, float]


class _Scores(nn.Module):
    """A model of ``transformers`` whose arguments are called ``names``; its scores alone."""

    def __init__(self, model: nn.Module, *names: str) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *arguments: torch.Tensor) -> torch.Tensor:
        return self.model(**dict(zip(self.names, arguments))).logits


class _First(nn.Module):
    """The first result of a model."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *arguments: torch.Tensor) -> torch.Tensor:
        return self.model(*arguments)[0]


def _tokens_loss(scores: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Scores (..., classes) of each token."""
    return functional.cross_entropy(scores.flatten(0, -2), tokens.flatten())


def _images(edge: int, rows: int = 6) -> list[tuple[torch.Tensor, ...]]:
    return [(torch.randn(rows, 3, edge, edge), torch.randint(0, _CLASSES, (rows,))) for _ in range(_BATCHES)]


def _tokens(length: int = 10, rows: int = 4) -> torch.Tensor:
    return torch.randint(3, VOCABULARY, (rows, length))


def _vision(model: str, config: str, edge: int, rates: tuple[float, float], **options: Any) -> Network:
    import transformers

    made = getattr(transformers, model)(getattr(transformers, config)(num_labels=_CLASSES, **options))
    return Network(_Scores(made, "pixel_values"), functional.cross_entropy, _images(edge), rates)


def resnet18() -> Network:
    sizes = {"embedding_size": 8, "hidden_sizes": [8, 16, 24, 32], "depths": [2, 2, 2, 2]}
    return _vision("ResNetForImageClassification", "ResNetConfig", 64, (2e-4, 1e-5), layer_type="basic", **sizes)


def mobilenet_v2() -> Network:
    """Of its fifty normalizations the last have few elements, and weights as small as they come would double what
    rounding does in every other layer: so the images stay larger, and the weights are."""
    sizes = {"image_size": 64, "depth_multiplier": 0.25, "classifier_dropout_prob": 0.0, "output_stride": 8}
    made = _vision("MobileNetV2ForImageClassification", "MobileNetV2Config", 64, (2e-5, 1e-5), **sizes)
    for layer in made.model.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight)
    return made


def efficientnet() -> Network:
    sizes: dict[str, Any] = {
        "image_size": 32,
        "width_coefficient": 0.25,
        "depth_coefficient": 0.5,
        "hidden_dim": 320,
        "kernel_sizes": [3, 5, 3],
        "in_channels": [32, 16, 24],
        "out_channels": [16, 24, 40],
        "depthwise_padding": [],
        "strides": [1, 2, 2],
        "num_block_repeats": [1, 2, 1],
        "expand_ratios": [1, 6, 6],
        "dropout_rate": 0.0,
        "drop_connect_rate": 0.0,
    }
    return _vision("EfficientNetForImageClassification", "EfficientNetConfig", 32, (0.02, 5e-4), **sizes)


def convnext() -> Network:
    sizes = {"hidden_sizes": [8, 16], "depths": [1, 2], "num_stages": 2}
    return _vision("ConvNextForImageClassification", "ConvNextConfig", 32, (0.002, 2e-4), **sizes)


def vit() -> Network:
    sizes = {k: _TEXT[k] for k in ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")}
    return _vision("ViTForImageClassification", "ViTConfig", 32, (0.01, 2e-4), image_size=32, patch_size=8, **sizes)


def bert() -> Network:
    """Tokens that stand behind others, the padded ones without a loss."""
    from transformers import BertConfig, BertForMaskedLM

    mask = torch.ones(4, 10, dtype=torch.int64)
    mask[1, 7:] = 0
    batches = [(tokens, mask, tokens.masked_fill(mask == 0, -100)) for tokens in (_tokens() for _ in range(_BATCHES))]
    model = _Scores(BertForMaskedLM(BertConfig(**_TEXT)), "input_ids", "attention_mask")
    return Network(model, _tokens_loss, batches, (0.01, 2e-4))


def gpt2() -> Network:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"vocab_size": VOCABULARY, "n_positions": 32, "n_embd": 32, "n_layer": 2, "n_head": 4}
    sizes |= {"bos_token_id": 1, "eos_token_id": 2}
    config = GPT2Config(**sizes, use_cache=False, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    batches = [(t[:, :-1], t[:, 1:].clone()) for t in (_tokens() for _ in range(_BATCHES))]
    return Network(_Scores(GPT2LMHeadModel(config), "input_ids"), _tokens_loss, batches, (0.01, 2e-4))


def t5() -> Network:
    from transformers import T5Config, T5ForConditionalGeneration

    sizes = {"vocab_size": VOCABULARY, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
    model = T5ForConditionalGeneration(T5Config(**sizes, use_cache=False, dropout_rate=0.0))
    batches = [(_tokens(), _tokens(6), _tokens(6)) for _ in range(_BATCHES)]
    return Network(_Scores(model, "input_ids", "decoder_input_ids"), _tokens_loss, batches, (0.001, 1e-4))


def lstm() -> Network:
    from benchmarks.models.lstm import LstmLanguageModel

    batches = [(t[:, :-1], t[:, 1:].clone()) for t in (_tokens() for _ in range(_BATCHES))]
    return Network(_First(LstmLanguageModel(VOCABULARY, 16)), _tokens_loss, batches, (0.1, 2e-3))


def unet() -> Network:
    from benchmarks.models.unet import UNet

    batches = [(torch.randn(2, 3, 16, 24), torch.randint(0, 2, (2, 16, 24))) for _ in range(_BATCHES)]
    return Network(UNet(width=4, depth=2), functional.cross_entropy, batches, (0.01, 2e-4))


def dlrm() -> Network:
    from benchmarks.models.dlrm import Dlrm

    def batch() -> tuple[torch.Tensor, ...]:
        return torch.randn(8, 13), torch.randint(0, 10, (3, 8, 2)), torch.randint(0, 2, (8, 1)).float()

    model = Dlrm(rows=(20, 30, 10), bottom=(16,), top=(16,), size=8)
    return Network(model, functional.binary_cross_entropy, [batch() for _ in range(_BATCHES)], (0.005, 1e-3))


def wavenet() -> Network:
    from benchmarks.models.wavenet import WaveNet

    model = WaveNet(levels=16, channels=8, skip=16, layers=3)
    samples = [torch.randint(0, 16, (2, 24)) for _ in range(_BATCHES)]
    batches = [(s[:, :-1], s[:, 1:].clone()) for s in samples]
    return Network(model, functional.cross_entropy, batches, (0.05, 2e-3))


NETWORKS: dict[str, Callable[[], Network]] = {
    make.__name__: make
    for make in (
        resnet18,
        mobilenet_v2,
        efficientnet,
        convnext,
        vit,
        bert,
        gpt2,
        t5,
        lstm,
        unet,
        dlrm,
        wavenet,
    )
}


def build(name: str) -> Network:
    """A network with the same weights and batches each time."""
    torch.manual_seed(3)
    return NETWORKS[name]()

"""Models of ``transformers`` and of ``benchmarks.models``, tiny and with random weights: a builder per architecture,
with one call's inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn


class Example(NamedTuple):
    """A module, and the arguments by name of one call."""

    module: nn.Module
    inputs: dict[str, Any]


BATCH, LENGTH, VOCABULARY = 2, 9, 40
ENCODER = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 32,
}
_VISION = {k: ENCODER[k] for k in ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")}
_VISION |= {"image_size": 32, "patch_size": 8}


def _tokens(length: int = LENGTH) -> torch.Tensor:
    return torch.randint(3, VOCABULARY, (BATCH, length))


def padding(length: int = LENGTH, missing: int = 3) -> torch.Tensor:
    """Ones, and zeros for the last ``missing`` positions of the second sequence."""
    mask = torch.ones(BATCH, length, dtype=torch.int64)
    mask[1, length - missing :] = 0
    return mask


def _text() -> dict[str, torch.Tensor]:
    return {"input_ids": _tokens(), "attention_mask": padding()}


def _image(size: int = 32, batch: int = BATCH) -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.randn(batch, 3, size, size)}


def bert() -> Example:
    from transformers import BertConfig, BertModel

    return Example(BertModel(BertConfig(**ENCODER)), _text())


def roberta() -> Example:
    from transformers import RobertaConfig, RobertaModel

    return Example(RobertaModel(RobertaConfig(**ENCODER)), _text())


def gpt2() -> Example:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=VOCABULARY, n_positions=32, n_embd=32, n_layer=2, n_head=4, use_cache=False)
    return Example(GPT2LMHeadModel(config), _text())


def llama() -> Example:
    """Grouped heads and rotary positions."""
    from transformers import LlamaConfig, LlamaForCausalLM

    return Example(LlamaForCausalLM(LlamaConfig(**ENCODER, num_key_value_heads=2, use_cache=False)), _text())


def t5() -> Example:
    """Encoder and decoder, both with their relative positions."""
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(vocab_size=VOCABULARY, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, use_cache=False)
    return Example(T5ForConditionalGeneration(config), {**_text(), "decoder_input_ids": _tokens(6)})


def vit() -> Example:
    from transformers import ViTConfig, ViTModel

    return Example(ViTModel(ViTConfig(**_VISION)), _image())


def resnet() -> Example:
    """Bottleneck blocks."""
    from transformers import ResNetConfig, ResNetModel

    config = ResNetConfig(embedding_size=8, hidden_sizes=[16, 32], depths=[2, 2], layer_type="bottleneck")
    return Example(ResNetModel(config), _image())


def mobilenet_v2() -> Example:
    from transformers import MobileNetV2Config, MobileNetV2Model

    return Example(MobileNetV2Model(MobileNetV2Config(image_size=32, depth_multiplier=0.25)), _image())


def efficientnet() -> Example:
    from transformers import EfficientNetConfig, EfficientNetModel

    config = EfficientNetConfig(
        image_size=32,
        width_coefficient=0.25,
        depth_coefficient=0.5,
        hidden_dim=320,
        kernel_sizes=[3, 5, 3],
        in_channels=[32, 16, 24],
        out_channels=[16, 24, 40],
        depthwise_padding=[],
        strides=[1, 2, 2],
        num_block_repeats=[1, 2, 1],
        expand_ratios=[1, 6, 6],
    )
    return Example(EfficientNetModel(config), _image())


def convnext() -> Example:
    from transformers import ConvNextConfig, ConvNextModel

    return Example(ConvNextModel(ConvNextConfig(hidden_sizes=[8, 16], depths=[1, 2], num_stages=2)), _image())


def swin() -> Example:
    """Shifted windows: cyclic shifts and a mask that follows from the image's size."""
    from transformers import SwinConfig, SwinModel

    config = SwinConfig(image_size=32, patch_size=2, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4)
    return Example(SwinModel(config), _image())


def wav2vec2() -> Example:
    from transformers import Wav2Vec2Config, Wav2Vec2Model

    config = Wav2Vec2Config(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        conv_dim=(16, 16, 16),
        conv_stride=(5, 2, 2),
        conv_kernel=(10, 3, 2),
        num_conv_pos_embeddings=8,
        num_conv_pos_embedding_groups=4,
        apply_spec_augment=False,
    )
    return Example(Wav2Vec2Model(config), {"input_values": torch.randn(BATCH, 400)})


def whisper() -> Example:
    """The encoder: spectrogram to states."""
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    config = WhisperConfig(
        num_mel_bins=16,
        d_model=32,
        encoder_layers=2,
        encoder_attention_heads=4,
        encoder_ffn_dim=64,
        max_source_positions=20,
    )
    return Example(WhisperEncoder(config), {"input_features": torch.randn(BATCH, 16, 40)})


def clip() -> Example:
    """Text and image, and their similarity."""
    from transformers import CLIPConfig, CLIPModel

    text = {**ENCODER, "eos_token_id": 2, "bos_token_id": 1}
    config = CLIPConfig(text_config=text, vision_config=_VISION, projection_dim=16)
    tokens = _tokens()
    tokens[:, -1] = 2
    tokens[1, 5:] = 2
    return Example(CLIPModel(config), {"input_ids": tokens, **_image(), "attention_mask": padding()})


# -------------------------------------------------------------------- our own


def lstm() -> Example:
    from benchmarks.models.lstm import LstmLanguageModel

    return Example(LstmLanguageModel(VOCABULARY, 16), {"tokens": _tokens()})


def unet() -> Example:
    from benchmarks.models.unet import UNet

    return Example(UNet(width=8, depth=2), {"x": torch.randn(BATCH, 3, 16, 24)})


def dlrm() -> Example:
    from benchmarks.models.dlrm import Dlrm

    module = Dlrm(rows=(20, 30, 10), bottom=(16,), top=(16,), size=8)
    return Example(module, {"dense": torch.randn(4, 13), "indices": torch.randint(0, 10, (3, 4, 2))})


def wavenet() -> Example:
    from benchmarks.models.wavenet import WaveNet

    return Example(WaveNet(16, 8, 16, layers=3), {"samples": torch.randint(0, 16, (BATCH, 20))})


def mlp_mixer() -> Example:
    from benchmarks.models.mlp_mixer import MlpMixer

    return Example(MlpMixer(classes=10, size=32, patch=8, channels=32, layers=2), {"x": torch.randn(BATCH, 3, 32, 32)})


def fcn8s() -> Example:
    from benchmarks.models.fcn8s import Fcn8s

    return Example(Fcn8s(classes=5, width=4, hidden=16), {"x": torch.randn(BATCH, 3, 32, 64)})


def yolov4() -> Example:
    from benchmarks.models.yolov4 import YoloV4

    return Example(YoloV4(classes=2, width=4, depths=(1, 1, 1, 1, 1)), {"x": torch.randn(BATCH, 3, 64, 64)})


ARCHITECTURES: dict[str, Callable[[], Example]] = {
    build.__name__: build
    for build in (
        bert,
        roberta,
        gpt2,
        llama,
        t5,
        vit,
        resnet,
        mobilenet_v2,
        efficientnet,
        convnext,
        swin,
        wav2vec2,
        whisper,
        clip,
        lstm,
        unet,
        dlrm,
        wavenet,
        mlp_mixer,
        fcn8s,
        yolov4,
    )
}

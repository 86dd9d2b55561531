"""Families that the rows of ``architectures`` lack: later decoders, mixtures, states and windows, and other vision."""

from __future__ import annotations

from typing import Any

import torch

from tests.models.architectures import (
    DECODER,
    ENCODER,
    GROUPED,
    SIZES,
    Row,
    image,
    plain,
    text,
    two_texts,
    wave,
)
from tests.models.zoo import BATCH, VOCABULARY


def _larger_image() -> dict[str, Any]:
    return {"pixel_values": torch.randn(BATCH, 3, 64, 64)}


MORE = {
    "cohere": Row("CohereForCausalLM", GROUPED, text),
    "starcoder2": Row("Starcoder2ForCausalLM", GROUPED, text),
    "stablelm": Row("StableLmForCausalLM", GROUPED, text),
    "persimmon": Row("PersimmonForCausalLM", DECODER, text),
    "codegen": Row(
        "CodeGenForCausalLM",
        {
            "vocab_size": VOCABULARY,
            "n_embd": 32,
            "n_layer": 1,
            "n_head": 4,
            "n_positions": 32,
            "rotary_dim": 4,
            "n_inner": 64,
            "use_cache": False,
        },
        text,
    ),
    "phi3": Row("Phi3ForCausalLM", {**GROUPED}, text),
    "granite": Row("GraniteForCausalLM", GROUPED, text),
    "olmo2": Row("Olmo2ForCausalLM", GROUPED, text),
    "gemma3": Row("Gemma3ForCausalLM", {**GROUPED, "sliding_window": 4, "layer_types": ["sliding_attention"]}, text),
    "glm": Row("GlmForCausalLM", GROUPED, text),
    "helium": Row("HeliumForCausalLM", GROUPED, text),
    "nemotron": Row("NemotronForCausalLM", GROUPED, text),
    "biogpt": Row("BioGptForCausalLM", DECODER, text),
    "mamba2": Row(
        "Mamba2ForCausalLM",
        {
            "vocab_size": VOCABULARY,
            "hidden_size": 32,
            "num_hidden_layers": 1,
            "num_heads": 8,
            "head_dim": 8,
            "state_size": 8,
            "n_groups": 1,
            "chunk_size": 4,
            "use_cache": False,
        },
        plain,
    ),
    "recurrent_gemma": Row(
        "RecurrentGemmaForCausalLM",
        {
            **GROUPED,
            "lru_width": 32,
            "attention_window_size": 8,
            "use_cache": False,
            "block_types": ["recurrent", "attention"],
            "num_hidden_layers": 2,
        },
        plain,
    ),
    "ibert": Row("IBertModel", ENCODER, text),
    "megatron_bert": Row("MegatronBertModel", ENCODER, text),
    "ernie": Row("ErnieModel", ENCODER, text),
    "esm": Row(
        "EsmModel", {**ENCODER, "position_embedding_type": "rotary", "token_dropout": False, "mask_token_id": 4}, text
    ),
    "yoso": Row("YosoModel", {**ENCODER, "use_expectation": True}, text),
    "switch": Row(
        "SwitchTransformersModel",
        {
            "vocab_size": VOCABULARY,
            "d_model": 32,
            "d_ff": 64,
            "d_kv": 8,
            "num_heads": 4,
            "num_layers": 1,
            "num_decoder_layers": 1,
            "num_experts": 2,
            "pad_token_id": 0,
            "use_cache": False,
        },
        two_texts,
    ),
    "longt5": Row(
        "LongT5Model",
        {
            "vocab_size": VOCABULARY,
            "d_model": 32,
            "d_ff": 64,
            "d_kv": 8,
            "num_heads": 4,
            "num_layers": 1,
            "num_decoder_layers": 1,
            "local_radius": 3,
            "pad_token_id": 0,
            "use_cache": False,
        },
        two_texts,
    ),
    "mvp": Row(
        "MvpModel",
        {
            "vocab_size": VOCABULARY,
            "d_model": 32,
            "encoder_layers": 1,
            "decoder_layers": 1,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 64,
            "decoder_ffn_dim": 64,
            "max_position_embeddings": 32,
            "use_cache": False,
        },
        two_texts,
    ),
    "swinv2": Row(
        "Swinv2Model",
        {"image_size": 32, "patch_size": 4, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4},
        image,
    ),
    "pvt": Row(
        "PvtV2Model",
        {
            "image_size": 32,
            "hidden_sizes": [16, 32],
            "depths": [1, 1],
            "num_attention_heads": [1, 2],
            "num_encoder_blocks": 2,
            "patch_sizes": [7, 3],
            "strides": [4, 2],
            "sr_ratios": [4, 2],
            "mlp_ratios": [2, 2],
        },
        image,
    ),
    "levit": Row(
        "LevitModel",
        {
            "image_size": 64,
            "hidden_sizes": [16, 16, 16],
            "num_attention_heads": [1, 1, 1],
            "depths": [1, 1, 1],
            "key_dim": [8, 8, 8],
        },
        _larger_image,
    ),
    "resnet": Row(
        "ResNetModel",
        {"embedding_size": 8, "hidden_sizes": [16, 32], "depths": [1, 1], "layer_type": "bottleneck"},
        image,
    ),
    "convnextv2": Row("ConvNextV2Model", {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2}, image),
    "focalnet": Row(
        "FocalNetModel",
        {
            "image_size": 32,
            "embed_dim": 8,
            "hidden_sizes": [8, 16],
            "depths": [1, 1],
            "focal_levels": [2, 2],
            "focal_windows": [3, 3],
        },
        image,
    ),
    "vit_msn": Row("ViTMSNModel", {**SIZES, "image_size": 32, "patch_size": 8}, image),
    "ijepa": Row("IJepaModel", {**SIZES, "image_size": 32, "patch_size": 8}, image),
    "sew_d": Row(
        "SEWDModel",
        {
            "hidden_size": 32,
            "num_hidden_layers": 1,
            "num_attention_heads": 4,
            "intermediate_size": 64,
            "conv_dim": (8, 8),
            "conv_kernel": (5, 3),
            "conv_stride": (4, 2),
            "conv_bias": False,
            "num_conv_pos_embeddings": 4,
            "num_conv_pos_embedding_groups": 2,
            "squeeze_factor": 2,
        },
        wave,
    ),
}

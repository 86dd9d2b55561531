"""More architectures of ``transformers``: a row each, tiny, with random weights and the inputs of one call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from tests.models.zoo import BATCH, LENGTH, VOCABULARY, Example, padding


class Row(NamedTuple):
    """A class of ``transformers`` by its name, what its configuration gets, and who makes its inputs."""

    model: str
    config: dict[str, Any]
    inputs: Callable[[], dict[str, Any]]


def _tokens(length: int = LENGTH) -> torch.Tensor:
    return torch.randint(3, VOCABULARY, (BATCH, length))


def plain() -> dict[str, Any]:
    return {"input_ids": _tokens()}


def text() -> dict[str, Any]:
    return {"input_ids": _tokens(), "attention_mask": padding()}


def _long_plain() -> dict[str, Any]:
    return {"input_ids": _tokens(16)}


def two_texts() -> dict[str, Any]:
    return {**text(), "decoder_input_ids": _tokens(6)}


def _two_long_texts() -> dict[str, Any]:
    return {"input_ids": _tokens(16), "decoder_input_ids": _tokens(6)}


def image() -> dict[str, Any]:
    return {"pixel_values": torch.randn(BATCH, 3, 32, 32)}


def wave() -> dict[str, Any]:
    return {"input_values": torch.randn(BATCH, 400)}


def _scene() -> dict[str, Any]:
    return {**text(), "visual_feats": torch.randn(BATCH, 4, 8), "visual_pos": torch.rand(BATCH, 4, 4)}


SIZES = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 64}
ENCODER = {**SIZES, "vocab_size": VOCABULARY, "max_position_embeddings": 32, "pad_token_id": 0}
DECODER = {**ENCODER, "use_cache": False, "bos_token_id": 1, "eos_token_id": 2}
GROUPED = {**DECODER, "num_key_value_heads": 2, "head_dim": 8}
_VISION = {**SIZES, "image_size": 32, "patch_size": 8}
_PAIR = {
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
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_WAVE = {
    **SIZES,
    "conv_dim": (16, 16),
    "conv_stride": (5, 2),
    "conv_kernel": (10, 3),
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 4,
    "apply_spec_augment": False,
}

ROWS = {
    # encoders of text
    "albert": Row("AlbertModel", {**ENCODER, "embedding_size": 16}, text),
    "distilbert": Row(
        "DistilBertModel",
        {
            "vocab_size": VOCABULARY,
            "max_position_embeddings": 32,
            "n_layers": 1,
            "n_heads": 4,
            "dim": 32,
            "hidden_dim": 64,
        },
        text,
    ),
    "electra": Row("ElectraModel", {**ENCODER, "embedding_size": 16}, text),
    "deberta": Row(
        "DebertaModel",
        {**ENCODER, "relative_attention": True, "pos_att_type": ["c2p", "p2c"], "max_relative_positions": 8},
        text,
    ),
    "deberta_v2": Row(
        "DebertaV2Model",
        {**ENCODER, "relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_buckets": 4},
        text,
    ),
    "xlnet": Row(
        "XLNetModel", {"vocab_size": VOCABULARY, "d_model": 32, "n_layer": 1, "n_head": 4, "d_inner": 64}, text
    ),
    "mpnet": Row("MPNetModel", {**ENCODER, "pad_token_id": 1}, text),
    "squeezebert": Row("SqueezeBertModel", {**ENCODER, "embedding_size": 32}, text),
    "convbert": Row("ConvBertModel", {**ENCODER, "embedding_size": 32, "head_ratio": 2, "num_groups": 1}, text),
    "roformer": Row("RoFormerModel", {**ENCODER, "embedding_size": 32}, text),
    "mobilebert": Row(
        "MobileBertModel",
        {**ENCODER, "embedding_size": 16, "intra_bottleneck_size": 16, "true_hidden_size": 16},
        text,
    ),
    "fnet": Row("FNetModel", ENCODER, plain),
    "longformer": Row("LongformerModel", {**ENCODER, "attention_window": 4, "pad_token_id": 1}, _long_plain),
    "bigbird": Row("BigBirdModel", {**ENCODER, "attention_type": "original_full"}, text),
    "nystromformer": Row(
        "NystromformerModel", {**ENCODER, "num_landmarks": 4, "segment_means_seq_len": 16}, _long_plain
    ),
    "funnel": Row(
        "FunnelModel",
        {
            "vocab_size": VOCABULARY,
            "d_model": 32,
            "n_head": 4,
            "d_head": 8,
            "d_inner": 64,
            "block_sizes": [1, 1],
            "num_decoder_layers": 1,
        },
        text,
    ),
    "perceiver": Row(
        "PerceiverModel",
        {
            "num_latents": 4,
            "d_latents": 16,
            "d_model": 32,
            "num_blocks": 1,
            "num_self_attends_per_block": 1,
            "num_self_attention_heads": 4,
            "num_cross_attention_heads": 4,
        },
        lambda: {"inputs": torch.randn(BATCH, LENGTH, 32)},
    ),
    "lxmert": Row(
        "LxmertModel",
        {**ENCODER, "l_layers": 1, "r_layers": 1, "x_layers": 1, "visual_feat_dim": 8},
        _scene,
    ),
    # decoders of text
    "gpt_neo": Row(
        "GPTNeoForCausalLM",
        {
            **DECODER,
            "num_hidden_layers": 2,
            "num_heads": 4,
            "attention_types": [[["global", "local"], 1]],
            "window_size": 4,
        },
        text,
    ),
    "gpt_neox": Row("GPTNeoXForCausalLM", DECODER, text),
    "gptj": Row(
        "GPTJForCausalLM",
        {
            "vocab_size": VOCABULARY,
            "n_positions": 32,
            "n_embd": 32,
            "n_layer": 1,
            "n_head": 4,
            "rotary_dim": 4,
            "use_cache": False,
        },
        text,
    ),
    "gpt_bigcode": Row(
        "GPTBigCodeForCausalLM",
        {"vocab_size": VOCABULARY, "n_positions": 32, "n_embd": 32, "n_layer": 1, "n_head": 4, "use_cache": False},
        text,
    ),
    "opt": Row("OPTForCausalLM", {**DECODER, "ffn_dim": 64, "word_embed_proj_dim": 32}, text),
    "bloom": Row("BloomForCausalLM", {**DECODER, "n_layer": 1, "n_head": 4}, text),
    "mpt": Row("MptForCausalLM", {**DECODER, "d_model": 32, "n_layers": 1, "n_heads": 4, "max_seq_len": 32}, text),
    "falcon": Row("FalconForCausalLM", DECODER, text),
    "mistral": Row("MistralForCausalLM", {**GROUPED, "sliding_window": 4}, text),
    "qwen2": Row("Qwen2ForCausalLM", GROUPED, text),
    "qwen3": Row("Qwen3ForCausalLM", GROUPED, text),
    "gemma": Row("GemmaForCausalLM", GROUPED, text),
    "gemma2": Row("Gemma2ForCausalLM", {**GROUPED, "sliding_window": 4}, text),
    "phi": Row("PhiForCausalLM", DECODER, text),
    "olmo": Row("OlmoForCausalLM", DECODER, text),
    "mixtral": Row("MixtralForCausalLM", {**GROUPED, "num_local_experts": 4, "experts_implementation": "eager"}, text),
    "mamba": Row("MambaForCausalLM", {**DECODER, "state_size": 4, "time_step_rank": 4}, plain),
    "rwkv": Row(
        "RwkvForCausalLM",
        {**DECODER, "num_hidden_layers": 2, "context_length": 32, "attention_hidden_size": 32},
        plain,
    ),
    "ctrl": Row(
        "CTRLModel",
        {
            "vocab_size": VOCABULARY,
            "n_positions": 32,
            "n_embd": 32,
            "n_layer": 1,
            "n_head": 4,
            "dff": 64,
            "use_cache": False,
        },
        text,
    ),
    # both
    "bart": Row("BartModel", _PAIR, two_texts),
    "pegasus": Row("PegasusModel", _PAIR, two_texts),
    "mbart": Row("MBartModel", _PAIR, two_texts),
    "marian": Row("MarianModel", _PAIR, two_texts),
    "led": Row(
        "LEDModel",
        {**_PAIR, "max_encoder_position_embeddings": 32, "max_decoder_position_embeddings": 32, "attention_window": 4},
        _two_long_texts,
    ),
    # images
    "deit": Row("DeiTModel", _VISION, image),
    "beit": Row("BeitModel", {**_VISION, "use_relative_position_bias": True}, image),
    "dinov2": Row("Dinov2Model", _VISION, image),
    "segformer": Row(
        "SegformerModel",
        {
            "num_encoder_blocks": 2,
            "depths": [1, 1],
            "sr_ratios": [2, 1],
            "hidden_sizes": [8, 16],
            "patch_sizes": [7, 3],
            "strides": [4, 2],
            "num_attention_heads": [1, 2],
            "mlp_ratios": [2, 2],
        },
        image,
    ),
    "mobilevit": Row(
        "MobileViTModel",
        {
            "image_size": 32,
            "hidden_sizes": [16, 16, 16],
            "neck_hidden_sizes": [4, 8, 8, 8, 8, 8, 16],
            "num_attention_heads": 2,
        },
        image,
    ),
    "regnet": Row(
        "RegNetModel", {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "groups_width": 4}, image
    ),
    "poolformer": Row(
        "PoolFormerModel",
        {
            "depths": [1, 1],
            "hidden_sizes": [8, 16],
            "num_encoder_blocks": 2,
            "patch_sizes": [7, 3],
            "strides": [4, 2],
            "padding": [2, 1],
        },
        image,
    ),
    # sound
    "hubert": Row("HubertModel", _WAVE, wave),
    "wavlm": Row("WavLMModel", _WAVE, wave),
    "sew": Row("SEWModel", {**_WAVE, "squeeze_factor": 2}, wave),
}


def build(row: Row) -> Example:
    """The row's module with random weights, in evaluation mode, and its inputs."""
    import transformers

    model: Any = getattr(transformers, row.model)
    torch.manual_seed(0)
    return Example(model(model.config_class(**row.config)).eval(), row.inputs())

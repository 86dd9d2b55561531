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


def _plain() -> dict[str, Any]:
    return {"input_ids": _tokens()}


def _text() -> dict[str, Any]:
    return {"input_ids": _tokens(), "attention_mask": padding()}


def _long_plain() -> dict[str, Any]:
    return {"input_ids": _tokens(16)}


def _two_texts() -> dict[str, Any]:
    return {**_text(), "decoder_input_ids": _tokens(6)}


def _two_long_texts() -> dict[str, Any]:
    return {"input_ids": _tokens(16), "decoder_input_ids": _tokens(6)}


def _image() -> dict[str, Any]:
    return {"pixel_values": torch.randn(BATCH, 3, 32, 32)}


def _wave() -> dict[str, Any]:
    return {"input_values": torch.randn(BATCH, 400)}


def _scene() -> dict[str, Any]:
    return {**_text(), "visual_feats": torch.randn(BATCH, 4, 8), "visual_pos": torch.rand(BATCH, 4, 4)}


_SIZES = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 64}
_ENCODER = {**_SIZES, "vocab_size": VOCABULARY, "max_position_embeddings": 32, "pad_token_id": 0}
_DECODER = {**_ENCODER, "use_cache": False, "bos_token_id": 1, "eos_token_id": 2}
_GROUPED = {**_DECODER, "num_key_value_heads": 2, "head_dim": 8}
_VISION = {**_SIZES, "image_size": 32, "patch_size": 8}
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
    **_SIZES,
    "conv_dim": (16, 16),
    "conv_stride": (5, 2),
    "conv_kernel": (10, 3),
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 4,
    "apply_spec_augment": False,
}

ROWS = {
    # encoders of text
    "albert": Row("AlbertModel", {**_ENCODER, "embedding_size": 16}, _text),
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
        _text,
    ),
    "electra": Row("ElectraModel", {**_ENCODER, "embedding_size": 16}, _text),
    "deberta": Row(
        "DebertaModel",
        {**_ENCODER, "relative_attention": True, "pos_att_type": ["c2p", "p2c"], "max_relative_positions": 8},
        _text,
    ),
    "deberta_v2": Row(
        "DebertaV2Model",
        {**_ENCODER, "relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_buckets": 4},
        _text,
    ),
    "xlnet": Row(
        "XLNetModel", {"vocab_size": VOCABULARY, "d_model": 32, "n_layer": 1, "n_head": 4, "d_inner": 64}, _text
    ),
    "mpnet": Row("MPNetModel", {**_ENCODER, "pad_token_id": 1}, _text),
    "squeezebert": Row("SqueezeBertModel", {**_ENCODER, "embedding_size": 32}, _text),
    "convbert": Row("ConvBertModel", {**_ENCODER, "embedding_size": 32, "head_ratio": 2, "num_groups": 1}, _text),
    "roformer": Row("RoFormerModel", {**_ENCODER, "embedding_size": 32}, _text),
    "mobilebert": Row(
        "MobileBertModel",
        {**_ENCODER, "embedding_size": 16, "intra_bottleneck_size": 16, "true_hidden_size": 16},
        _text,
    ),
    "fnet": Row("FNetModel", _ENCODER, _plain),
    "longformer": Row("LongformerModel", {**_ENCODER, "attention_window": 4, "pad_token_id": 1}, _long_plain),
    "bigbird": Row("BigBirdModel", {**_ENCODER, "attention_type": "original_full"}, _text),
    "nystromformer": Row(
        "NystromformerModel", {**_ENCODER, "num_landmarks": 4, "segment_means_seq_len": 16}, _long_plain
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
        _text,
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
        {**_ENCODER, "l_layers": 1, "r_layers": 1, "x_layers": 1, "visual_feat_dim": 8},
        _scene,
    ),
    # decoders of text
    "gpt_neo": Row(
        "GPTNeoForCausalLM",
        {
            **_DECODER,
            "num_hidden_layers": 2,
            "num_heads": 4,
            "attention_types": [[["global", "local"], 1]],
            "window_size": 4,
        },
        _text,
    ),
    "gpt_neox": Row("GPTNeoXForCausalLM", _DECODER, _text),
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
        _text,
    ),
    "gpt_bigcode": Row(
        "GPTBigCodeForCausalLM",
        {"vocab_size": VOCABULARY, "n_positions": 32, "n_embd": 32, "n_layer": 1, "n_head": 4, "use_cache": False},
        _text,
    ),
    "opt": Row("OPTForCausalLM", {**_DECODER, "ffn_dim": 64, "word_embed_proj_dim": 32}, _text),
    "bloom": Row("BloomForCausalLM", {**_DECODER, "n_layer": 1, "n_head": 4}, _text),
    "mpt": Row("MptForCausalLM", {**_DECODER, "d_model": 32, "n_layers": 1, "n_heads": 4, "max_seq_len": 32}, _text),
    "falcon": Row("FalconForCausalLM", _DECODER, _text),
    "mistral": Row("MistralForCausalLM", {**_GROUPED, "sliding_window": 4}, _text),
    "qwen2": Row("Qwen2ForCausalLM", _GROUPED, _text),
    "qwen3": Row("Qwen3ForCausalLM", _GROUPED, _text),
    "gemma": Row("GemmaForCausalLM", _GROUPED, _text),
    "gemma2": Row("Gemma2ForCausalLM", {**_GROUPED, "sliding_window": 4}, _text),
    "phi": Row("PhiForCausalLM", _DECODER, _text),
    "olmo": Row("OlmoForCausalLM", _DECODER, _text),
    "mixtral": Row(
        "MixtralForCausalLM", {**_GROUPED, "num_local_experts": 4, "experts_implementation": "eager"}, _text
    ),
    "mamba": Row("MambaForCausalLM", {**_DECODER, "state_size": 4, "time_step_rank": 4}, _plain),
    "rwkv": Row(
        "RwkvForCausalLM",
        {**_DECODER, "num_hidden_layers": 2, "context_length": 32, "attention_hidden_size": 32},
        _plain,
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
        _text,
    ),
    # both
    "bart": Row("BartModel", _PAIR, _two_texts),
    "pegasus": Row("PegasusModel", _PAIR, _two_texts),
    "mbart": Row("MBartModel", _PAIR, _two_texts),
    "marian": Row("MarianModel", _PAIR, _two_texts),
    "led": Row(
        "LEDModel",
        {**_PAIR, "max_encoder_position_embeddings": 32, "max_decoder_position_embeddings": 32, "attention_window": 4},
        _two_long_texts,
    ),
    # images
    "deit": Row("DeiTModel", _VISION, _image),
    "beit": Row("BeitModel", {**_VISION, "use_relative_position_bias": True}, _image),
    "dinov2": Row("Dinov2Model", _VISION, _image),
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
        _image,
    ),
    "mobilevit": Row(
        "MobileViTModel",
        {
            "image_size": 32,
            "hidden_sizes": [16, 16, 16],
            "neck_hidden_sizes": [4, 8, 8, 8, 8, 8, 16],
            "num_attention_heads": 2,
        },
        _image,
    ),
    "regnet": Row(
        "RegNetModel", {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "groups_width": 4}, _image
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
        _image,
    ),
    # sound
    "hubert": Row("HubertModel", _WAVE, _wave),
    "wavlm": Row("WavLMModel", _WAVE, _wave),
    "sew": Row("SEWModel", {**_WAVE, "squeeze_factor": 2}, _wave),
}


def build(name: str) -> Example:
    """The row's module with random weights, in evaluation mode, and its inputs."""
    import transformers

    row = ROWS[name]
    model: Any = getattr(transformers, row.model)
    torch.manual_seed(0)
    return Example(model(model.config_class(**row.config)).eval(), row.inputs())

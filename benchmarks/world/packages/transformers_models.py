"""Models of ``transformers`` with random weights: the families of PyTorch's benchmark dashboard, and one of each current
kind. Layers have their published widths where two cores allow; two of them, and a small vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from benchmarks.world.catalogue import Row
from benchmarks.world.program import Program

WORDS, SIDE = 1000, 224
Inputs = Callable[[int], dict[str, Any]]


def ids(k: int, length: int = 64) -> torch.Tensor:
    """Two sequences of tokens; later sizes are longer."""
    return torch.randint(5, WORDS, (2, length + 16 * k))


def text(k: int) -> dict[str, Any]:
    """Tokens, the last of the second sequence padded."""
    tokens = ids(k)
    mask = torch.ones_like(tokens)
    mask[1, -5:] = 0
    return {"input_ids": tokens, "attention_mask": mask}


def plain(k: int) -> dict[str, Any]:
    """Tokens."""
    return {"input_ids": ids(k)}


def labelled(k: int) -> dict[str, Any]:
    """Tokens with the next ones as labels."""
    tokens = ids(k)
    return {"input_ids": tokens, "labels": tokens}


def pairs(k: int) -> dict[str, Any]:
    """Tokens of two languages."""
    return {"input_ids": ids(k), "labels": ids(k, 32)}


def image(k: int, side: int = SIDE) -> dict[str, Any]:
    """Images; later sizes have more of them."""
    return {"pixel_values": torch.randn(2 + k, 3, side, side)}


def wave(k: int) -> dict[str, Any]:
    """A second of sound, and more."""
    return {"input_values": torch.randn(1, 16000 + 3200 * k)}


def captioned(k: int) -> dict[str, Any]:
    """Images with texts."""
    return {**image(k), "input_ids": torch.randint(5, WORDS, (2 + k, 16)), "return_loss": True}


_SIZES = {"hidden_size": 768, "num_hidden_layers": 2, "num_attention_heads": 12, "intermediate_size": 3072}
_TEXT = {**_SIZES, "vocab_size": WORDS, "pad_token_id": 0}
_DECODER = {**_TEXT, "bos_token_id": 1, "eos_token_id": 2, "use_cache": False}
_LLAMA = {**_DECODER, "num_key_value_heads": 4, "head_dim": 64, "intermediate_size": 2048}
_EXPERTS = {**_LLAMA, "moe_intermediate_size": 512, "num_experts_per_tok": 2}
_VISION = {**_SIZES}
_PAIR = {
    "vocab_size": WORDS,
    "d_model": 512,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 8,
    "decoder_attention_heads": 8,
    "encoder_ffn_dim": 2048,
    "decoder_ffn_dim": 2048,
    "use_cache": False,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
}
_T5 = {"vocab_size": WORDS, "num_layers": 2, "num_decoder_layers": 2, "use_cache": False, "decoder_start_token_id": 0}
_GPT2 = {"vocab_size": WORDS, "n_layer": 2, "use_cache": False, "bos_token_id": 1, "eos_token_id": 2}
_WAVE = {**_SIZES, "vocab_size": 32, "apply_spec_augment": False, "layerdrop": 0.0}
_TWO = {"text_config": {**_TEXT, "num_hidden_layers": 2}, "vision_config": {**_VISION, "image_size": SIDE}}

TABLE: tuple[tuple[str, dict[str, Any], Inputs], ...] = (
    # the dashboard's
    ("AlbertForMaskedLM", _TEXT, labelled),
    ("AllenaiLongformerBase:LongformerForMaskedLM", {**_TEXT, "attention_window": 32, "max_position_embeddings": 512}, text),
    ("BartForCausalLM", {**_PAIR, "is_encoder_decoder": False, "is_decoder": True}, labelled),
    ("BartForConditionalGeneration", _PAIR, pairs),
    ("BertForMaskedLM", _TEXT, labelled),
    ("BertForQuestionAnswering", _TEXT, text),
    ("BlenderbotForCausalLM", {**_PAIR, "is_encoder_decoder": False, "is_decoder": True}, labelled),
    ("BlenderbotSmallForConditionalGeneration", _PAIR, pairs),
    ("CamembertForMaskedLM:CamembertForMaskedLM", {**_TEXT, "pad_token_id": 1}, labelled),
    ("DebertaForMaskedLM", {**_TEXT, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]}, labelled),
    ("DebertaV2ForMaskedLM", {**_TEXT, "relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_buckets": 32}, labelled),
    ("DistilBertForMaskedLM", {"vocab_size": WORDS, "n_layers": 2}, labelled),
    ("DistillGPT2:GPT2LMHeadModel", _GPT2, labelled),
    ("ElectraForCausalLM", {**_TEXT, "is_decoder": True}, labelled),
    ("GPT2ForSequenceClassification", {**_GPT2, "pad_token_id": 0}, plain),
    ("GPTNeoForCausalLM", {"vocab_size": WORDS, "hidden_size": 768, "num_heads": 12, "num_layers": 2, "attention_types": [[["global", "local"], 1]], "use_cache": False}, labelled),
    ("GPTJForCausalLM", {**_GPT2, "n_embd": 768, "n_head": 12, "rotary_dim": 64}, labelled),
    ("GoogleFnet:FNetForMaskedLM", _TEXT, labelled),
    ("LayoutLMForMaskedLM", _TEXT, labelled),
    ("M2M100ForConditionalGeneration", _PAIR, pairs),
    ("MBartForConditionalGeneration", _PAIR, pairs),
    ("MT5ForConditionalGeneration", _T5, pairs),
    ("MegatronBertForCausalLM", {**_TEXT, "is_decoder": True}, labelled),
    ("MobileBertForMaskedLM", {"vocab_size": WORDS, "num_hidden_layers": 2}, labelled),
    ("OPTForCausalLM", {**_DECODER, "ffn_dim": 3072, "word_embed_proj_dim": 768}, labelled),
    ("PLBartForConditionalGeneration", _PAIR, pairs),
    ("PegasusForConditionalGeneration", _PAIR, pairs),
    ("RobertaForQuestionAnswering", {**_TEXT, "pad_token_id": 1}, text),
    ("T5ForConditionalGeneration", _T5, pairs),
    ("TrOCRForCausalLM", {"vocab_size": WORDS, "decoder_layers": 2, "d_model": 512, "decoder_attention_heads": 8, "decoder_ffn_dim": 2048, "use_cache": False}, plain),
    ("XGLMForCausalLM", {"vocab_size": WORDS, "num_layers": 2, "d_model": 512, "attention_heads": 8, "ffn_dim": 2048, "use_cache": False}, labelled),
    ("XLNetLMHeadModel", {"vocab_size": WORDS, "d_model": 768, "n_layer": 2, "n_head": 12, "d_inner": 3072}, text),
    ("YituTechConvBert:ConvBertForMaskedLM", {**_TEXT, "embedding_size": 768}, labelled),
    ("XLMRobertaForMaskedLM", {**_TEXT, "pad_token_id": 1}, labelled),
    # further encoders of text
    ("ModernBertForMaskedLM", {**_TEXT, "intermediate_size": 1152, "cls_token_id": 1, "sep_token_id": 2, "bos_token_id": 1, "eos_token_id": 2}, text),
    ("MPNetForMaskedLM", {**_TEXT, "pad_token_id": 1}, labelled),
    ("SqueezeBertForMaskedLM", {**_TEXT, "embedding_size": 768}, labelled),
    ("NystromformerForMaskedLM", {**_TEXT, "segment_means_seq_len": 64}, labelled),
    ("BigBirdForMaskedLM", {**_TEXT, "attention_type": "original_full"}, labelled),
    ("FunnelForMaskedLM", {"vocab_size": WORDS, "block_sizes": [1, 1], "d_model": 768}, labelled),
    ("RoFormerForMaskedLM", {**_TEXT, "embedding_size": 768}, labelled),
    # decoders
    ("LlamaForCausalLM", _LLAMA, labelled),
    ("MistralForCausalLM", _LLAMA, labelled),
    ("Qwen2ForCausalLM", _LLAMA, labelled),
    ("Qwen3ForCausalLM", _LLAMA, labelled),
    ("Qwen3MoeForCausalLM", {**_EXPERTS, "num_experts": 4}, labelled),
    ("Gemma2ForCausalLM", _LLAMA, labelled),
    ("Gemma3ForCausalLM", _LLAMA, labelled),
    ("Phi3ForCausalLM", _LLAMA, labelled),
    ("MixtralForCausalLM", {**_LLAMA, "num_local_experts": 4}, labelled),
    ("OlmoeForCausalLM", {**_EXPERTS, "num_experts": 4}, labelled),
    ("Olmo2ForCausalLM", _LLAMA, labelled),
    ("CohereForCausalLM", _LLAMA, labelled),
    ("GraniteForCausalLM", _LLAMA, labelled),
    ("StableLmForCausalLM", _LLAMA, labelled),
    ("FalconForCausalLM", _DECODER, labelled),
    ("BloomForCausalLM", {"vocab_size": WORDS, "hidden_size": 768, "n_layer": 2, "n_head": 12, "use_cache": False}, labelled),
    ("GPTNeoXForCausalLM", _DECODER, labelled),
    ("GPTBigCodeForCausalLM", _GPT2, labelled),
    ("MambaForCausalLM", {"vocab_size": WORDS, "hidden_size": 512, "num_hidden_layers": 2, "use_cache": False}, labelled),
    ("Mamba2ForCausalLM", {"vocab_size": WORDS, "hidden_size": 256, "num_heads": 8, "head_dim": 64, "num_hidden_layers": 2, "use_cache": False}, labelled),
    ("RwkvForCausalLM", {"vocab_size": WORDS, "hidden_size": 256, "num_hidden_layers": 2, "use_cache": False}, labelled),
    ("XLMForSequence:XLMModel", {"vocab_size": WORDS, "n_layers": 2, "emb_dim": 512, "n_heads": 8}, plain),
    # vision
    ("ViTForImageClassification", _VISION, image),
    ("DeiTForImageClassification", _VISION, image),
    ("BeitForImageClassification", _VISION, image),
    ("Dinov2Model", {**_SIZES, "image_size": SIDE, "patch_size": 14}, image),
    ("ConvNextForImageClassification", {"depths": [1, 1, 2, 1]}, image),
    ("SwinForImageClassification", {"depths": [1, 1, 2, 1]}, image),
    ("SegformerForSemanticSegmentation", {"depths": [1, 1, 1, 1]}, partial(image, side=128)),
    ("ResNetForImageClassification", {}, image),
    ("MobileViTForImageClassification", {}, partial(image, side=256)),
    ("PoolFormerForImageClassification", {"depths": [1, 1, 2, 1]}, image),
    ("ViTMAEForPreTraining", {**_VISION, "decoder_num_hidden_layers": 1, "norm_pix_loss": True}, image),
    ("DPTForDepthEstimation", {**_VISION, "num_hidden_layers": 4, "backbone_out_indices": [0, 1, 2, 3], "out_indices": [0, 1, 2, 3]}, image),
    ("Swin2SRForImageSuperResolution", {"depths": [1, 1], "num_heads": [2, 2], "embed_dim": 60, "image_size": 32}, partial(image, side=32)),
    # detection
    ("YolosForObjectDetection", {**_VISION, "image_size": [128, 160], "num_detection_tokens": 20}, partial(image, side=128)),
    # speech
    ("Wav2Vec2ForCTC", _WAVE, wave),
    ("HubertForCTC", _WAVE, wave),
    ("WavLMForCTC", _WAVE, wave),
    ("ASTForAudioClassification", {**_VISION, "max_length": 256}, lambda k: {"input_values": torch.randn(1 + k, 256, 128)}),
    ("WhisperForConditionalGeneration", {**_PAIR, "d_model": 384, "encoder_attention_heads": 6, "decoder_attention_heads": 6, "encoder_ffn_dim": 1536, "decoder_ffn_dim": 1536, "max_source_positions": 200}, lambda k: {"input_features": torch.randn(1 + k, 80, 400), "labels": torch.randint(5, WORDS, (1 + k, 16))}),
    # several kinds of input
    ("CLIPModel", {"text_config": {**_SIZES, "vocab_size": WORDS, "eos_token_id": 2}, "vision_config": _VISION}, captioned),
    ("SiglipModel", {"text_config": {**_SIZES, "vocab_size": WORDS, "max_position_embeddings": 16}, "vision_config": {**_VISION, "image_size": SIDE}}, captioned),
    # time series
    ("PatchTSTForPrediction", {"num_input_channels": 7, "context_length": 96, "prediction_length": 24, "d_model": 128}, lambda k: {"past_values": torch.randn(8 + k, 96, 7), "future_values": torch.randn(8 + k, 24, 7)}),
    ("PatchTSMixerForPrediction", {"num_input_channels": 7, "context_length": 96, "prediction_length": 24, "d_model": 64, "patch_length": 8, "patch_stride": 8}, lambda k: {"past_values": torch.randn(8 + k, 96, 7), "future_values": torch.randn(8 + k, 24, 7)}),
    ("AutoformerModel", {"prediction_length": 12, "context_length": 36, "lags_sequence": [1, 2], "d_model": 64, "num_time_features": 1}, lambda k: _series(k, 38)),
    ("InformerModel", {"prediction_length": 12, "context_length": 36, "lags_sequence": [1, 2], "d_model": 64, "num_time_features": 1}, lambda k: _series(k, 38)),
    ("DecisionTransformerModel", {"state_dim": 11, "act_dim": 3, "hidden_size": 128, "n_layer": 2, "n_head": 2}, lambda k: _episode(2 + k, 20)),
)  # fmt: skip
GENERATION = ("LlamaForCausalLM", "GPT2LMHeadModel", "Qwen3ForCausalLM", "T5ForConditionalGeneration")


def _series(k: int, past: int) -> dict[str, Any]:
    batch = 4 + k
    return {
        "past_values": torch.randn(batch, past),
        "past_time_features": torch.randn(batch, past, 1),
        "past_observed_mask": torch.ones(batch, past),
        "future_values": torch.randn(batch, 12),
        "future_time_features": torch.randn(batch, 12, 1),
    }


def _episode(batch: int, length: int) -> dict[str, Any]:
    return {
        "states": torch.randn(batch, length, 11),
        "actions": torch.randn(batch, length, 3),
        "rewards": torch.randn(batch, length, 1),
        "returns_to_go": torch.randn(batch, length, 1),
        "timesteps": torch.arange(length).repeat(batch, 1),
        "attention_mask": torch.ones(batch, length, dtype=torch.int64),
    }


def rows() -> Iterator[Row]:
    for name, config, inputs in TABLE:
        label, _, model = name.rpartition(":")
        yield Row("transformers", label or model, partial(random_model, model, config, inputs))
    for model in GENERATION:
        config = dict(next((c for n, c, _ in TABLE if n.endswith(model)), _GPT2))
        config["use_cache"] = True
        build = partial(generating, model, config)
        yield Row("transformers", f"{model}.generate", build, modes=("inference",))


def random_model(model: str, config: dict[str, Any], inputs: Inputs, k: int) -> Program:
    """A class by its name, of a configuration without dropout."""
    import transformers

    kind = getattr(transformers, model)
    made = kind(configured(kind, config))
    return Program(made, inputs(k), random="it masks patches at random" if "MAE" in model else "")


def configured(kind: Any, config: dict[str, Any]) -> Any:
    """A configuration whose dropout is none."""
    found = kind.config_class(**config)
    for part in (found, *(v for v in vars(found).values() if hasattr(v, "to_dict"))):
        for name, value in vars(part).items():
            if "drop" in name and isinstance(value, float):
                setattr(part, name, 0.0)
    return found


def generating(model: str, config: dict[str, Any], k: int) -> Program:
    """Eight tokens, greedily, with a cache of keys and values."""
    import transformers

    kind = getattr(transformers, model)
    return Program(kind(configured(kind, config)), (ids(k, 24),), _generate)


def _generate(model: Any, tokens: torch.Tensor) -> Any:
    mask = torch.ones_like(tokens)
    return model.generate(tokens, attention_mask=mask, max_new_tokens=8, do_sample=False, pad_token_id=0)

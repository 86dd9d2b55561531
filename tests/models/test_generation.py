"""Text is generated with a cache that grows: eager PyTorch's tokens, from a few programs."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

import daceopt
from tests.models.zoo import VOCABULARY

LENGTH, NEW = 5, 20


def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=VOCABULARY, n_positions=32, n_embd=32, n_layer=1, n_head=4)
    return GPT2LMHeadModel(config)


def llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=64,
        max_position_embeddings=32,
    )
    return LlamaForCausalLM(config)


def generated(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """``tokens`` and what the model goes on with, the likeliest token each time."""
    found = model.generate(tokens, max_new_tokens=NEW, do_sample=False, eos_token_id=None, pad_token_id=0)
    assert isinstance(found, torch.Tensor)
    return found


@pytest.mark.parametrize("build", [pytest.param(gpt2, marks=pytest.mark.breadth), llama])
def test_greedy(build: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    model = build().eval()
    optimized = daceopt.optimized_module(copy.deepcopy(model), fallback="raise")
    tokens = torch.randint(3, VOCABULARY, (1, LENGTH))
    found = generated(optimized, tokens)
    assert found.shape == (1, LENGTH + NEW)
    assert torch.equal(found, generated(model, tokens))
    stats = optimized.daceopt.stats
    assert (stats.calls, stats.eager_calls) == (NEW, 0)
    assert stats.programs <= 4  # the prompt, the first token after it, all lengths from then on

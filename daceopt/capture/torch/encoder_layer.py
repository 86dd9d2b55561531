"""The fused encoder layer of ``nn.TransformerEncoderLayer`` taken apart, for autocast to act on its parts.

PyTorch's kernel calls these operators itself (``aten/src/ATen/native/transformers/transformer.cpp``), so that products
and attention are narrow there, and sums have the type of what is added to. Without autocast the layer stays one
operator (``aten/transformer.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch.nn import functional

T = TypeVar("T")


def encoder_layer(
    src: torch.Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: torch.Tensor,
    norm_bias_1: torch.Tensor,
    norm_weight_2: torch.Tensor,
    norm_bias_2: torch.Tensor,
    ffn_weight_1: torch.Tensor,
    ffn_bias_1: torch.Tensor,
    ffn_weight_2: torch.Tensor,
    ffn_bias_2: torch.Tensor,
    mask: torch.Tensor | None = None,
    mask_type: int | None = None,
) -> torch.Tensor:
    """``src``: [N, tokens, ``embed_dim``], as the result is; hidden is where ``mask`` is not zero."""
    visible = None if mask is None else _visible(mask, mask_type)

    def attend(x: torch.Tensor) -> torch.Tensor:
        parts = functional.linear(x, qkv_weight, qkv_bias).chunk(3, -1)
        q, k, v = (p.unflatten(-1, (num_heads, embed_dim // num_heads)).transpose(1, 2) for p in parts)
        heads = functional.scaled_dot_product_attention(q, k, v, visible)
        return functional.linear(heads.transpose(1, 2).flatten(2), proj_weight, proj_bias)

    def feed(x: torch.Tensor) -> torch.Tensor:
        wide = functional.linear(x, ffn_weight_1, ffn_bias_1)
        active = functional.gelu(wide) if use_gelu else functional.relu(wide)
        return functional.linear(active, ffn_weight_2, ffn_bias_2)

    norms = (
        lambda x: functional.layer_norm(x, (embed_dim,), norm_weight_1, norm_bias_1, eps),
        lambda x: functional.layer_norm(x, (embed_dim,), norm_weight_2, norm_bias_2, eps),
    )
    return in_turn(src, (attend, feed), norms, _add, norm_first)


def in_turn(
    x: T,
    parts: Sequence[Callable[[T], T]],
    norms: Sequence[Callable[[T], T]],
    added: Callable[[T, T], T],
    norm_first: bool,
) -> T:
    """What each part makes of ``x``, added to it, one part after the other: of what its norm makes of ``x``, or
    normalized with it."""
    for part, norm in zip(parts, norms, strict=True):
        x = added(x, part(norm(x))) if norm_first else norm(added(x, part(x)))
    return x


def _add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """In the type of ``y``, into which PyTorch adds."""
    return (y + x).to(y.dtype)


def _visible(mask: torch.Tensor, mask_type: int | None) -> torch.Tensor:
    """Over rows and keys (type 0), sequences and keys (1), or all (2)."""
    visible = mask == 0
    return visible[:, None, None, :] if mask_type == 1 and mask.dim() == 2 else visible

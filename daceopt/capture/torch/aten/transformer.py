"""The fused encoder layer that ``nn.TransformerEncoderLayer`` calls for inference, spelt out in its parts."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from daceopt.capture.torch.calls import Promise
from daceopt.capture.torch.encoder_layer import in_turn
from daceopt.capture.torch.table import translates
from daceopt.capture.torch.translation import Translation
from daceopt.errors import Unsupported
from daceopt.ir.scalar import scalar, types
from daceopt.ir.scalar.dims import Dim


@translates("_transformer_encoder_layer_fwd")
def encoder_layer(
    t: Translation,
    src: str,
    embed_dim: int,
    num_heads: int,
    qkv_weight: str,
    qkv_bias: str,
    proj_weight: str,
    proj_bias: str,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: str,
    norm_bias_1: str,
    norm_weight_2: str,
    norm_bias_2: str,
    ffn_weight_1: str,
    ffn_bias_1: str,
    ffn_weight_2: str,
    ffn_bias_2: str,
    mask: str | None,
    mask_type: int | None,
) -> str:
    if not types.is_float(t.dtype) or len(t.shape) != 3 or 0 in t.shape or not isinstance(num_heads, int):
        raise Unsupported(f"an encoder layer over {types.name_of(t.dtype)}{list(t.shape)}")
    hidden = None if mask is None else _visible(t, mask, mask_type)

    def attend(x: str) -> str:
        qkv = _linear(t, x, qkv_weight, qkv_bias)
        heads = _attention(t, qkv, embed_dim, num_heads, hidden)
        return _linear(t, heads, proj_weight, proj_bias)

    def feed(x: str) -> str:
        wide = _linear(t, x, ffn_weight_1, ffn_bias_1)
        active = t.operator("Gelu" if use_gelu else "Relu", wide, results=[_like(t, wide)])
        return _linear(t, active, ffn_weight_2, ffn_bias_2)

    norms = (
        lambda x: _normalize(t, x, norm_weight_1, norm_bias_1, eps),
        lambda x: _normalize(t, x, norm_weight_2, norm_bias_2, eps),
    )
    return in_turn(src, (attend, feed), norms, lambda x, y: _add(t, x, y), norm_first)


def _like(t: Translation, x: str) -> Promise:
    return Promise(t.shape_of(x), t.dtype_of(x))


def _add(t: Translation, x: str, y: str) -> str:
    return t.operator("Add", x, y, results=[_like(t, x)])


def _linear(t: Translation, x: str, weight: str, bias: str) -> str:
    promise = Promise((*t.shape_of(x)[:-1], t.shape_of(weight)[0]), t.dtype)
    product = t.operator("MatMul", x, t.transpose(weight, [1, 0]), results=[promise])
    return t.operator("Add", product, bias, results=[promise])


def _normalize(t: Translation, x: str, weight: str, bias: str, eps: float) -> str:
    return t.operator("LayerNormalization", x, weight, bias, results=[_like(t, x)], axis=-1, epsilon=eps)


def _attention(t: Translation, qkv: str, width: int, heads: int, visible: str | None) -> str:
    lead = t.shape_of(qkv)[:-1]
    q, k, v = (_columns(t, qkv, part * width, (part + 1) * width) for part in range(3))
    counts: dict[str, Any] = {"q_num_heads": heads, "kv_num_heads": heads, "scale": 1 / math.sqrt(width // heads)}
    return t.operator("Attention", q, k, v, visible, results=[Promise((*lead, width), t.dtype)], **counts)


def _columns(t: Translation, x: str, start: int, stop: int) -> str:
    bounds = [t.b.constant(np.asarray([v], np.int64)) for v in (start, stop, -1)]
    return t.operator("Slice", x, *bounds, results=[Promise((*t.shape_of(x)[:-1], stop - start), t.dtype_of(x))])


def _visible(t: Translation, mask: str, mask_type: int | None) -> str:
    """PyTorch's kernel hides where the mask is not zero: over rows and keys (0), sequences and keys (1), or all (2)."""
    shape: tuple[Dim, ...] = t.shape_of(mask)
    if mask_type == 0 and len(shape) == 2:
        shape = (1, 1, *shape)
    elif mask_type == 1 and len(shape) == 2:
        shape = (shape[0], 1, 1, shape[1])
    elif len(shape) != 4:
        raise Unsupported(f"a mask of shape {shape} and type {mask_type}")
    visible = t.b.elementwise(lambda m: scalar.eq(m, 0), mask, dtype=types.from_name("bool"), label="visible")
    return t.reshape(visible, shape)

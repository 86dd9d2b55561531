"""Attention: the Attention operator where it says the same, else products and a softmax as PyTorch's own form."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import sympy

from daceopt.capture.torch.aten.random import ratio_of
from daceopt.capture.torch.calls import Number, NumberArray, Promise
from daceopt.capture.torch.table import translates
from daceopt.capture.torch.translation import Translation
from daceopt.errors import Unsupported
from daceopt.ir.nodes.builder import broadcast_shapes
from daceopt.ir.scalar import scalar, types
from daceopt.ir.scalar.dims import Dim, Shape, dim


@translates("scaled_dot_product_attention")
def scaled_dot_product_attention(
    t: Translation,
    query: str,
    key: str,
    value: str,
    attn_mask: str | None,
    dropout_p: float | NumberArray,
    is_causal: bool,
    scale: float | NumberArray | None,
    enable_gqa: bool,
) -> str:
    """softmax(scale Q K' + mask) V; a row whose keys are all hidden is zero."""
    _check(t, query, key, value, attn_mask)
    if isinstance(scale, NumberArray):
        query, scale = t.operator("Mul", query, t.array(scale, t.dtype), results=[_like(t, query)]), 1.0
    factor = _scale(t, query, scale)
    q, k, v = (_four(t, x) for x in (query, key, value))
    is_fixed = isinstance(t.shape_of(query)[-1], int)
    drops = isinstance(dropout_p, NumberArray) or dropout_p > 0
    if drops or not is_fixed or not _same_lead(t, q, k, v) or t.shape[:-2] != t.shape_of(query)[:-2]:
        key, value = (_repeat_heads(t, x, t.shape_of(query)) if enable_gqa else x for x in (key, value))
        return _spelt_out(t, (query, key, value), attn_mask, dropout_p, is_causal, factor)
    mask = _mask(t, attn_mask, q, k)
    shape = (*t.shape_of(q)[:3], t.shape_of(v)[3])
    y = t.operator(
        "Attention", q, k, v, mask, results=[Promise(shape, t.dtype)], scale=factor, is_causal=int(is_causal)
    )
    return t.reshape(y, t.shape)


def _check(t: Translation, query: str, key: str, value: str, mask: str | None) -> None:
    if not types.is_float(t.dtype):
        raise Unsupported(f"attention over {types.name_of(t.dtype)}; supported are floats")
    shapes = [t.shape_of(x) for x in (query, key, value)]
    if min(map(len, shapes)) < 2 or any(0 in s for s in shapes):
        raise Unsupported(f"attention over shapes {shapes}; expected two axes or more, and elements")
    if mask is not None and not types.is_bool(t.dtype_of(mask)) and not types.is_float(t.dtype_of(mask)):
        raise Unsupported(f"a mask of {types.name_of(t.dtype_of(mask))}; expected booleans or floats")


def _scale(t: Translation, query: str, scale: Number | None) -> float | None:
    """The factor of the scores; None where it depends on a size that is not known yet."""
    size = t.shape_of(query)[-1]
    if scale is not None and not isinstance(scale, (int, float)):
        raise Unsupported(f"attention with scale {scale}; expected a number")
    if not isinstance(size, int):
        return scale
    return 1 / math.sqrt(size) if scale is None else float(scale)


def _four(t: Translation, x: str) -> str:
    """``x`` as [batch, heads, length, size]; what is before the heads becomes the batch."""
    shape = t.shape_of(x)
    if len(shape) < 4:
        return t.reshape(x, (1,) * (4 - len(shape)) + tuple(shape))
    batch: Dim = 1
    for extent in shape[:-3]:
        batch = dim(batch * extent)
    return t.reshape(x, (batch, *shape[-3:]))


def _same_lead(t: Translation, q: str, k: str, v: str) -> bool:
    """Batches are the same, and heads as well, or those of the queries a multiple."""
    (batch, heads), *others = (t.shape_of(x)[:2] for x in (q, k, v))
    if others[0] != others[1] or dim(others[0][0] - batch) != 0:
        return False
    each = others[0][1]
    return dim(each - heads) == 0 or (isinstance(each, int) and isinstance(heads, int) and heads % each == 0)


def _repeat_heads(t: Translation, x: str, query: Shape) -> str:
    """Each head as often as there are heads of the queries for it."""
    shape = t.shape_of(x)
    *lead, heads, length, size = shape
    if dim(heads - query[-3]) == 0:
        return x
    if not isinstance(heads, int) or not isinstance(query[-3], int):
        raise Unsupported(f"{query[-3]} heads of queries for {heads} heads of keys; expected known numbers")
    group = query[-3] // heads
    wide = t.expand(t.reshape(x, (*lead, heads, 1, length, size)), (*lead, heads, group, length, size))
    return t.reshape(wide, (*lead, query[-3], length, size))


def _mask(t: Translation, mask: str | None, q: str, k: str) -> str | None:
    """The mask as [batch or 1, heads or 1, rows or 1, keys], of the type of the scores or boolean."""
    if mask is None:
        return None
    if not types.is_bool(t.dtype_of(mask)):
        mask = t.cast(mask, t.dtype)
    shape = t.shape_of(mask)
    keys = t.shape_of(k)[2]
    wide = (*shape[:-1], keys)
    mask = t.expand(mask, wide)
    return _four(t, _merge_leading(t, mask, len(t.shape)))


def _merge_leading(t: Translation, mask: str, rank: int) -> str:
    """A mask of more than four axes is expanded to the batch of the call before these are merged."""
    shape = t.shape_of(mask)
    if rank <= 4 or len(shape) < 4:
        return mask
    missing = (1,) * (rank - len(shape)) + tuple(shape)
    return t.expand(t.reshape(mask, missing), (*t.shape[: rank - 3], *missing[rank - 3 :]))


# -------------------------------------------------------------------- spelt out


def _spelt_out(
    t: Translation,
    operands: Sequence[str],
    mask: str | None,
    dropout: float | NumberArray,
    causal: bool,
    scale: float | None,
) -> str:
    """As PyTorch's own mathematical form: operands broadcast, and weights may be dropped at random."""
    query, key, value = operands
    rank = len(t.shape_of(key))
    lead = broadcast_shapes(t.shape_of(query)[:-2], t.shape_of(key)[:-2])
    rows, keys = t.shape_of(query)[-2], t.shape_of(key)[-2]
    scores = Promise((*lead, rows, keys), t.dtype)
    columns = t.transpose(key, [*range(rank - 2), rank - 1, rank - 2])
    factor = _factor(t, scale, t.shape_of(query)[-1])
    weights = t.operator("MatMul", query, columns, results=[scores])
    weights = t.operator("Mul", weights, factor, results=[scores])  # where it fuses with what follows
    if mask is not None or causal:
        weights = _hide(t, weights, mask)
    if causal:
        weights = _causal(t, weights)
    weights = _softmax(t, weights, guarded=mask is not None)
    if isinstance(dropout, NumberArray) or dropout > 0:
        ratio, training = ratio_of(t, dropout), t.b.constant(np.asarray(True))
        weights = t.operator("Dropout", weights, ratio, training, results=[_like(t, weights)])
    return t.operator("MatMul", weights, value)


def _factor(t: Translation, scale: float | None, size: Dim) -> str:
    if scale is not None or isinstance(size, int):
        return t.array(1 / math.sqrt(int(size)) if scale is None else scale, t.dtype)
    return str(t.b.elementwise(lambda n: 1 / sympy.sqrt(n), t.array(size, t.dtype), dtype=t.dtype, label="scale"))


def _like(t: Translation, x: str) -> Promise:
    return Promise(t.shape_of(x), t.dtype_of(x))


def _hide(t: Translation, scores: str, mask: str | None) -> str:
    """With a mask of floats added, or -inf where a boolean one is false: a score of NaN stays NaN."""
    if mask is None:
        return scores
    shape = broadcast_shapes(t.shape_of(scores), t.shape_of(mask))
    if types.is_bool(t.dtype_of(mask)):
        visible, hidden = (t.b.constant(np.asarray(v).astype(types.to_numpy(t.dtype))) for v in (0, -np.inf))
        mask = t.operator("Where", mask, visible, hidden, results=[Promise(t.shape_of(mask), t.dtype)])
    return t.operator("Add", scores, t.cast(mask, t.dtype), results=[Promise(shape, t.dtype)])


def _causal(t: Translation, scores: str) -> str:
    """Query i sees keys 0 to i."""
    shape, dtype = t.shape_of(scores), t.dtype_of(scores)
    out = t.graph.add_array("causal", shape, dtype)
    reads = {"s": (scores, lambda *i: i)}

    def element(i: tuple[sympy.Symbol, ...], s: sympy.Expr) -> sympy.Expr:
        return scalar.select(scalar.le(i[-1], i[-2]), s, -scalar.infinity())

    t.b.map(shape, reads, {"out": (out, lambda *i: i)}, element, label="causal")
    return str(out)


def _softmax(t: Translation, scores: str, guarded: bool) -> str:
    """Over the keys; with ``guarded``, rows of -inf become 0."""
    if not guarded:
        return t.operator("Softmax", scores, results=[_like(t, scores)], axis=-1)
    top = t.operator(
        "ReduceMax", scores, t.b.constant(np.asarray([-1], np.int64)), results=[_top(t, scores)], keepdims=1
    )
    alive = t.b.elementwise(lambda m: scalar.ne(m, -scalar.infinity()), top, label="alive")
    zero = t.b.constant(np.asarray(0).astype(types.to_numpy(t.dtype)))
    visible = t.operator("Where", alive, scores, zero, results=[_like(t, scores)])
    weights = t.operator("Softmax", visible, results=[_like(t, scores)], axis=-1)
    return t.operator("Where", alive, weights, zero, results=[_like(t, scores)])


def _top(t: Translation, scores: str) -> Promise:
    return Promise((*t.shape_of(scores)[:-1], 1), t.dtype_of(scores))

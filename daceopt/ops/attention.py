"""Attention: a product, a mask, a softmax and a second product, each of which has its own gradient."""

from __future__ import annotations

import math
from typing import Any

from daceopt.ir import scalar, types
from daceopt.ir.builder import Builder
from daceopt.ir.graph import Dim, Graph, dim
from daceopt.ops import values
from daceopt.ops.elementwise import alias
from daceopt.ops.library import Contraction
from daceopt.ops.registry import FLOATS, Names, Operator, lowering, supports


@lowering("Attention", types=FLOATS)
def attention(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    """softmax(scale Q K' + mask) V over [batch, heads, length, size] or, packed, [batch, length, heads * size]."""
    packed = len(b.graph.shape(str(inputs[0]))) == 3
    heads, kv_heads = node.attribute("q_num_heads"), node.attribute("kv_num_heads")
    q = _split_heads(b, str(inputs[0]), heads) if packed else str(inputs[0])
    k, v = (_split_heads(b, str(n), kv_heads) if packed else str(n) for n in inputs[1:3])
    k, past = _with_past(b, k, values.at(inputs, 4), values.at(outputs, 1))
    v, _ = _with_past(b, v, values.at(inputs, 5), values.at(outputs, 2))
    scale = node.attribute("scale", 1 / math.sqrt(int(b.graph.shape(q)[-1])))
    scores = _grouped_product(b, q, b.transpose(k, [0, 1, 3, 2]), alpha=scale)
    scores = _mask(b, scores, values.at(inputs, 3), past if node.attribute("is_causal", 0) else None)
    weights = b.graph.add_array("attention", b.graph.shape(scores), b.graph.dtype(scores))
    b.graph.add_operator("Softmax", [scores], [weights], {"axis": -1})
    y = _grouped_product(b, weights, v, packed=packed)
    out = str(outputs[0])
    y = b.transpose(y, [0, 2, 1, 3]) if packed else y
    b.reshape(y, b.graph.shape(out), out=out)


def _split_heads(b: Builder, x: str, heads: int) -> str:
    """[batch, length, heads * size] as [batch, heads, length, size]"""
    batch, length, width = b.graph.shape(x)
    return b.transpose(b.reshape(x, (batch, length, heads, dim(width // heads))), [0, 2, 1, 3])


def _with_past(b: Builder, x: str, past: str | None, present: str | None) -> tuple[str, Dim]:
    """``x`` after the cached keys or values, and how many there are of those."""
    count: Dim = 0
    if past is not None:
        batch, heads, length, size = b.graph.shape(x)
        count = b.graph.shape(past)[2]
        joined = b.graph.add_array("present", (batch, heads, dim(count + length), size), b.graph.dtype(x))
        b.graph.add_operator("Concat", [past, x], [joined], {"axis": 2})
        x = joined
    if present is not None:
        alias(b, x, present)
    return x, count


def _grouped_product(b: Builder, left: str, right: str, alpha: float = 1.0, packed: bool = False) -> str:
    """left @ right, where each head of ``right`` serves as many heads of ``left`` as there are for each of its own.

    ``packed`` keeps the heads of one position side by side in memory.
    """
    (batch, heads, rows, inner), kv_heads = b.graph.shape(left), b.graph.shape(right)[1]
    columns = b.graph.shape(right)[-1]
    strides = (rows * heads * columns, columns, heads * columns, 1) if packed else None
    y = b.graph.add_array(b.label, (batch, heads, rows, columns), b.graph.dtype(left), strides)
    if heads == kv_heads:
        b.library(Contraction, {"A": left, "B": right}, {"Y": y}, alpha=alpha)
        return y
    group = heads // kv_heads
    left = b.reshape(left, (batch, kv_heads, group, rows, inner))
    steps = (strides[0], group * columns, *strides[1:]) if strides else None
    wide = b.graph.add_array(b.label, (batch, kv_heads, group, rows, columns), b.graph.dtype(left), steps)
    b.library(Contraction, {"A": left, "B": b.unsqueeze(right, [2])}, {"Y": wide}, alpha=alpha)
    return b.reshape(wide, (batch, heads, rows, columns))


def _mask(b: Builder, scores: str, mask: str | None, past: Dim | None) -> str:
    """Adds a float mask; hides (by -inf) what a bool mask excludes and, with ``past``, positions after the query's."""
    if mask is None and past is None:
        return scores
    shape = b.graph.shape(scores)
    reads: dict[str, Any] = {"s": (scores, lambda *i: i)}
    if mask is not None:
        own = b.graph.shape(mask)
        reads["m"] = (mask, lambda *i: tuple(0 if n == 1 else p for n, p in zip(own, i[len(i) - len(own) :])))
    boolean = mask is not None and types.is_bool(b.graph.dtype(mask))

    def fn(i: Any, s: Any, m: Any = None) -> Any:
        if m is not None:
            s = scalar.select(m, s, -scalar.infinity()) if boolean else s + m
        return s if past is None else scalar.select(scalar.le(i[3], i[2] + past), s, -scalar.infinity())

    out = b.graph.add_array("masked_scores", shape, b.graph.dtype(scores))
    b.map(shape, reads, {"out": (out, lambda *i: i)}, fn, label="mask")
    return out


@supports("Attention")
def why_not_attention(graph: Graph, node: Operator) -> str | None:
    inputs, outputs = graph.inputs_of(node), graph.outputs_of(node)
    if node.attribute("softcap", 0.0):
        return f"softcap={node.attribute('softcap')}; supported is 0"
    if values.at(outputs, 3) is not None or values.at(inputs, 6) is not None:
        return "output qk_matmul_output or input nonpad_kv_seqlen; supported are Y, present_key, present_value"
    if any(node.attribute(n, -1) >= 0 for n in ("left_window_size", "right_window_size")):
        return "a sliding window; supported are full and causal attention"
    mask = values.at(inputs, 3)
    if mask is not None and graph.shape(mask)[-1] != 1 and values.at(inputs, 4) is None:
        keys = graph.shape(str(inputs[1]))[-2]
        if graph.shape(mask)[-1] != keys:
            return f"a mask of {graph.shape(mask)[-1]} columns for {keys} keys; expected as many columns as keys"
    return None

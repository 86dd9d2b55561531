"""Scaled dot-product attention from products and a softmax."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import dace
import numpy as np

from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.operators import operator_writing
from daceopt.ir.scalar import types
from daceopt.ir.scalar.dims import Shape
from daceopt.ops.core.widening import FACTORS_WERE, MASK_WAS
from daceopt.ops.families.attention import DOMAIN, DROPOUT, SEES_A_KEY
from daceopt.ops.families.random import as_attribute, stream_of
from daceopt.passes.patterns import Match, Op, PatternRule, either, maybe, op, scaled

_PRODUCT = op("MatMul", "q", "kt").named("product").shared()
_WIDE = either(op("Cast", _PRODUCT).named("widened").shared(), _PRODUCT)
_SCORES = either(scaled(_WIDE, "scale").shared(), _WIDE)
_MASKED = either(op("Add", _SCORES, "mask").shared(), _SCORES, "scores")
_WEIGHTS = maybe("Dropout", op("Softmax", _MASKED).named("weights"), name="dropout")
_FIRST = np.zeros(1, np.int64)


@dataclass(frozen=True)
class AttentionLifting(PatternRule):
    """One Attention operator for queries, keys and values of (batch, head, position, feature); without a batch as well.

    before:  y = MatMul(Softmax(MatMul(q, Transpose(k)) * s + mask), v)
    after:   y = Attention(q, k, v, mask; scale=s)

    Where weights are dropped at random it is one DropoutAttention, which draws the same numbers.
    ``narrow``: also where products are of a narrow type and the softmax between them is of float32, as autocast has
    them. Then the operator notes what its factors were, for a library to multiply them so, and scores are not rounded.
    """

    thing = "the attention"
    pattern = op("MatMul", maybe("Cast", _WEIGHTS, name="narrowed"), "v")
    narrow: bool = False

    def why_not(self, m: Match) -> str | None:
        axis, rank = m.node("weights").attribute("axis", -1), len(m.shape("weights"))
        if rank not in (3, 4) or len(m.shape("v")) != rank:
            ranks = f"the weights have {rank} and the values {len(m.shape('v'))} dimensions"
            return f"{ranks}, expected 4: batch, head, position, feature; or 3 without a batch"
        if axis % rank != rank - 1:
            return f"the softmax is over axis {axis}, expected the last"
        if "dropout" in m and m.node("dropout").since_version < 12:
            return "the dropout is of an operator set before 12, which says otherwise whether it is for training"
        if "product" not in m:
            return f"the scores {m['scores']} are not a product of queries and keys"
        return _shapes_differ(m) or (self._why_not_narrow(m) if "widened" in m or "narrowed" in m else None)

    def _why_not_narrow(self, m: Match) -> str | None:
        if not self.narrow or "dropout" in m:
            return f"its products are of other types than its softmax{', and weights are dropped' * ('dropout' in m)}"
        dtypes = {m.graph.dtype(m[n]) for n in ("q", "kt", "v")}
        factors = m.graph.options.factors
        if not dtypes <= set(factors) or len(dtypes) != 1 or m.graph.dtype(m["weights"]) != dace.float32:
            expected = " or ".join(map(types.name_of, factors))
            return f"products of {sorted(map(types.name_of, dtypes))}, expected {expected} around a softmax of float32"
        if "mask" in m and _was(m.graph, m["mask"]) not in dtypes:
            return f"a mask that was not of {types.name_of(dtypes.pop())} before"
        return None

    def replace(self, m: Match) -> Op:
        if "widened" in m or "narrowed" in m:
            return op("Cast", self._replacement(m, _widen), to=types.to_onnx(m.graph.dtype(m["v"])))
        return self._replacement(m, lambda x: x)

    def _replacement(self, m: Match, factor: Callable[[Op | str], Op | str]) -> Op:
        if len(m.shape("q")) == 4:
            return _attention(m, factor("q"), factor(_keys(m)), factor("v"), "mask" if "mask" in m else None)
        mask = None if "mask" not in m else op("Unsqueeze", "mask", _FIRST) if len(m.shape("mask")) == 3 else "mask"
        q, k, v = (op("Unsqueeze", factor(x), _FIRST) for x in ("q", _keys(m), "v"))
        return op("Squeeze", _attention(m, q, k, v, mask), _FIRST)


def _attention(m: Match, q: Op | str, k: Op | str, v: Op | str, mask: Op | str | None) -> Op:
    attributes = {"scale": m.get("scale", 1.0), SEES_A_KEY: 1}
    if "widened" in m or "narrowed" in m:
        were = types.to_onnx(m.graph.dtype(m["v"]))
        attributes |= {FACTORS_WERE: were} | ({} if mask is None else {MASK_WAS: were})
    if "dropout" not in m:
        return op("Attention", q, k, v, *([] if mask is None else [mask]), **attributes)
    node = m.node("dropout")
    ratio, training = (*m.graph.inputs_of(node)[1:], None, None)[:2]
    number = as_attribute(stream_of(node, m["dropout"], node.attribute("seed")))
    return op(f"{DOMAIN}::{DROPOUT}", q, k, v, mask, ratio, training, **attributes, stream=number)


def _widen(x: Op | str) -> Op:
    return op("Cast", x, to=types.to_onnx(dace.float32))


def _was(graph: Graph, wide: str) -> Any:
    """The type from which it was widened."""
    node = operator_writing(graph, wide, "Cast")
    return graph.dtype(wide) if node is None else graph.dtype(graph.operand(node, 0))


def _shapes_differ(m: Match) -> str | None:
    q, kt, v = m.shape("q"), m.shape("kt"), m.shape("v")
    if len(q) != len(v) or len(kt) != len(v) or q[:-2] != kt[:-2]:
        return f"queries of shape {q} and transposed keys of shape {kt} differ in batch or heads"
    if v[:-2] != q[:-2]:
        return f"values of shape {v} and queries of shape {q} differ in batch or heads"
    if "mask" in m and not _broadcasts(m.shape("mask"), m.shape("weights")):
        return f"the mask of shape {m.shape('mask')} is larger than the scores {m.shape('weights')}"
    return None


def _broadcasts(shape: Shape, to: Shape) -> bool:
    return len(shape) <= len(to) and all(s in (1, t) for s, t in zip(reversed(shape), reversed(to), strict=False))


def _keys(m: Match) -> Op | str:
    """The keys: what ``kt`` transposes if that undoes the swap, else ``kt`` transposed once more (a view)."""
    rank = len(m.shape("kt"))
    swap = [*range(rank - 2), rank - 1, rank - 2]
    node, source, perm = operator_writing(m.graph, m["kt"], "Transpose"), m["kt"], swap
    if node is not None:
        source, inner = m.graph.operand(node, 0), list(node.attribute("perm") or range(rank)[::-1])
        perm = [inner[p] for p in swap]
    return source if perm == sorted(perm) else op("Transpose", source, perm=perm)

"""Scaled dot-product attention from products and a softmax."""

from __future__ import annotations

from dataclasses import dataclass

from daceopt.ir.graph import Shape
from daceopt.ir.operators import made_by
from daceopt.ops.families.attention import SEES_A_KEY
from daceopt.passes.patterns import Match, Op, PatternRule, either, maybe, op, scaled

_SWAP = [0, 1, 3, 2]
_PRODUCT = op("MatMul", "q", "kt").named("product").shared()
_SCORES = either(scaled(_PRODUCT, "scale").shared(), _PRODUCT)
_MASKED = either(op("Add", _SCORES, "mask").shared(), _SCORES, "scores")


@dataclass(frozen=True)
class AttentionLifting(PatternRule):
    """One Attention operator for queries, keys and values of (batch, head, position, feature), without dropout.

    before:  y = MatMul(Softmax(MatMul(q, Transpose(k)) * s + mask), v)
    after:   y = Attention(q, k, v, mask; scale=s)
    """

    thing = "the attention"
    pattern = op("MatMul", maybe("Dropout", op("Softmax", _MASKED).named("weights"), name="dropout"), "v")

    def why_not(self, m: Match) -> str | None:
        if "dropout" in m:
            return "dropout stands between the softmax and the product with the values"
        axis, rank = m.node("weights").attribute("axis", -1), len(m.shape("weights"))
        if rank != 4 or len(m.shape("v")) != 4:
            ranks = f"the weights have {rank} and the values {len(m.shape('v'))} dimensions"
            return f"{ranks}, expected 4: batch, head, position, feature"
        if axis % rank != rank - 1:
            return f"the softmax is over axis {axis}, expected the last"
        return (
            _shapes_differ(m) if "product" in m else f"the scores {m['scores']} are not a product of queries and keys"
        )

    def replace(self, m: Match) -> Op:
        return op("Attention", "q", _keys(m), "v", "mask?", scale=m.get("scale", 1.0), **{SEES_A_KEY: 1})


def _shapes_differ(m: Match) -> str | None:
    q, kt, v = m.shape("q"), m.shape("kt"), m.shape("v")
    if len(q) != 4 or len(kt) != 4 or q[:2] != kt[:2]:
        return f"queries of shape {q} and transposed keys of shape {kt} differ in batch or heads"
    if v[:2] != q[:2]:
        return f"values of shape {v} and queries of shape {q} differ in batch or heads"
    if "mask" in m and not _broadcasts(m.shape("mask"), m.shape("weights")):
        return f"the mask of shape {m.shape('mask')} is larger than the scores {m.shape('weights')}"
    return None


def _broadcasts(shape: Shape, to: Shape) -> bool:
    return len(shape) <= len(to) and all(s in (1, t) for s, t in zip(reversed(shape), reversed(to), strict=False))


def _keys(m: Match) -> Op | str:
    """The keys: what ``kt`` transposes if that undoes the swap, else ``kt`` transposed once more (a view)."""
    node, source, perm = made_by(m.graph, m["kt"], "Transpose"), m["kt"], _SWAP
    if node is not None:
        source, inner = m.graph.operand(node, 0), list(node.attribute("perm") or (3, 2, 1, 0))
        perm = [inner[p] for p in _SWAP]
    return source if perm == sorted(perm) else op("Transpose", source, perm=perm)

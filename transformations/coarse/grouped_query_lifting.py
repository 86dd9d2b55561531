"""Attention in which several heads of queries share one of keys and values, from repeated heads."""

from __future__ import annotations

from dataclasses import dataclass

from daceopt.ops.families.attention import DOMAIN, DROPOUT
from daceopt.passes.patterns import Match, Op, PatternRule, either, op


def _repeat(name: str) -> Op:
    """``name`` (batch, heads, position, feature) with each head several times in turn."""
    column = op("Unsqueeze|Reshape", name, ...).named(f"{name}_column").shared()
    wide = op("Expand", column, ...).named(f"{name}_wide").shared()
    return op("Reshape", wide, ...).named(f"{name}_heads").shared()


@dataclass(frozen=True)
class GroupedQueryLifting(PatternRule):
    """Let Attention read each head of keys and values for all queries that share it, instead of copies.

    before:  y = Attention(q, Reshape(Expand(Unsqueeze(k, 2))), Reshape(Expand(Unsqueeze(v, 2))))
    after:   y = Attention(q, k, v)

    Ainslie et al., GQA, 2023.
    """

    thing = "the attention"
    pattern = either(
        op("Attention", "q", _repeat("k"), _repeat("v"), "mask?", ...).named("attention"),
        op(f"{DOMAIN}::{DROPOUT}", "q", _repeat("k"), _repeat("v"), "mask?", ...).named("attention"),
    )

    def why_not(self, m: Match) -> str | None:
        node = m.node("attention")
        if not node.domain and any(n is not None for n in m.graph.inputs_of(node)[4:]):
            return "there are keys of earlier calls"
        if len(m.shape("q")) != 4:
            return f"queries of shape {m.shape('q')}: expected batch, head, position, feature"
        groups = [_group(m, name) for name in ("k", "v")]
        if None in groups:
            name = "k" if groups[0] is None else "v"
            return f"{m[f'{name}_heads']} is no repetition of the heads of {m[name]}, each several times in turn"
        if groups[0] != groups[1] or m.shape("k")[1] != m.shape("v")[1]:
            return f"heads of keys {m.shape('k')} and values {m.shape('v')} are shared by {groups} heads of queries"
        return None

    def replace(self, m: Match) -> Op:
        node = m.node("attention")
        prefix = f"{node.domain}::" if node.domain else ""
        rest = m.graph.inputs_of(node)[4:] if node.domain else []
        return op(f"{prefix}{node.op_type}", "q", "k", "v", "mask?", *rest, **node.attributes)


def _group(m: Match, name: str) -> int | None:
    """How often each head of ``name`` is in turn; None where that is not what is done to it."""
    shape = m.shape(name)
    if len(shape) != 4:
        return None
    batch, heads, *rest = shape
    wide, result = m.shape(f"{name}_wide"), m.shape(f"{name}_heads")
    if len(wide) != 5 or m.shape(f"{name}_column") != (batch, heads, 1, *rest):
        return None
    group = wide[2]
    same = wide == (batch, heads, group, *rest) and result == (batch, heads * group, *rest)
    return group if same and isinstance(group, int) else None

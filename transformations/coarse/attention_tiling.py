"""Attention over tiles of keys."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from daceopt.ir.graph import Graph
from daceopt.ir.operands import required
from daceopt.ops.families.tiled_attention import DOMAIN, NAME, default_scale, why_not_tiled
from daceopt.passes.transform import NearMiss, Site, Transformation


@dataclass(frozen=True)
class AttentionTiling(Transformation):
    """Compute attention tile by tile, so that the scores of all pairs never stand in memory.

    before:  y = Attention(q, k, v, mask): s = q @ k' * scale + mask;  p = softmax(s);  y = p @ v
    after:   for tiles of rows:  top = -inf; total = 0; sum = 0
                 for tiles of keys, in order:
                     s = q @ k' * scale + mask;  top' = max(top, max(s));  p = exp(s - top');  r = exp(top - top')
                     total = total * r + sum of p;  sum = sum * r + p @ v;  top = top'
                 y = sum / total

    It is one operator, TiledAttention, until the operators are lowered. Differentiated, the backward graph has the
    weights again from queries and keys. Milakov and Gimelshein, 2018; Dao et al., NeurIPS 2022.
    ``rows`` and ``keys``: the size of a tile, as measured (docs/decisions/014-carried-values.md).
    """

    level: ClassVar[str] = "coarse"
    rows: int = 64
    keys: int = 128

    def match_at(self, graph: Graph, node: Any) -> Iterable[Site | NearMiss]:
        if getattr(node, "op_type", None) != "Attention" or node.domain != "":
            return
        reason = why_not_tiled(graph, node)
        yield Site(graph, (node,)) if reason is None else NearMiss(node, reason)

    def apply(self, site: Site) -> None:
        graph, (node,) = site.graph, site.nodes
        inputs, out = graph.inputs_of(node)[:4], required(graph.outputs_of(node), 0)
        own = {"scale": default_scale(graph, node), "rows": self.rows, "keys": self.keys}
        attributes = {**node.attributes, **own}
        origins = graph.origins_of(node)
        graph.remove(node)
        with graph.made_for(origins=origins):
            graph.add_operator(NAME, inputs, [out], attributes, DOMAIN)

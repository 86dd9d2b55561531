"""Attention over tiles of keys."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node
from daceopt.ir.graph.operands import require
from daceopt.ir.scalar import types
from daceopt.ir.scalar.dims import hint
from daceopt.ops.core.widening import FACTORS_WERE, MASK_WAS
from daceopt.ops.families.attention import DROPOUT, apart, scale_of
from daceopt.ops.families.tiled_attention import DOMAIN, NAME, TILED_TYPES, why_not_in_tiles, why_not_tiled
from daceopt.passes.transform import NearMiss, Site, Transformation
from daceopt.transformations.coarse._attention_operands import (
    as_it_was,
    heads_apart,
    heads_beside,
    read_dropout,
    round_to,
)

# queries and keys of a tile: as measured, and where the tiles above a diagonal are left out, which takes square ones.
# Products of bfloat16 are over sooner: what is done for each row and panel counts for more.
_TILES = {False: (64, 128), True: (128, 512)}
_CAUSAL_TILES = {False: (128, 128), True: (256, 256)}


@dataclass(frozen=True)
class AttentionTiling(Transformation):
    """Compute attention tile by tile, so that the scores of all pairs never stand in memory.

    before:  y = Attention(q, k, v, mask): s = q @ k' * scale + mask;  p = softmax(s);  y = p @ v
    after:   for tiles of rows:  top = -inf; total = 0; sum = 0
                 for tiles of keys, in order:
                     s = q @ k' * scale + mask;  top' = max(top, max(s));  p = exp(s - top');  r = exp(top - top')
                     total = total * r + sum of p;  sum = sum * r + p @ v;  top = top'
                 y = sum / total

    It is one operator, TiledAttention, until the operators are lowered, also where weights are dropped at random.
    Differentiated, it leaves two numbers for each row, by which the backward graph has the weights again, tile by tile.
    Milakov and Gimelshein, 2018; Dao et al., NeurIPS 2022.
    Where queries, keys and values were bfloat16 before they were widened, tiles multiply them as they were, and weights
    rounded to it; scores and sums stay float32. Packed heads are taken apart before, and are side by side again
    behind.
    ``rows`` and ``keys``: the size of a tile, None: as measured (docs/decisions/014-carried-values.md and 030).
    ``least``: bytes of all scores for which it is worth it; sizes that are open count as large.
    """

    level: ClassVar[str] = "coarse"
    rows: int | None = None
    keys: int | None = None
    least: int = 0

    def match_at(self, graph: Graph, node: Node) -> Iterable[Site | NearMiss]:
        dropout: dict[str, Any] = {}
        kind = getattr(node, "op_type", None), getattr(node, "domain", "")
        if kind == ("Attention", ""):
            reason = why_not_tiled(graph, node)
        elif kind == (DROPOUT, DOMAIN):
            reason, dropout = read_dropout(graph, node)
            reason = reason or why_not_in_tiles(graph, node)
        else:
            return
        reason = reason or self._why_small(graph, node)
        yield Site(graph, (node,), {"dropped": dropout}) if reason is None else NearMiss(node, reason)

    def _why_small(self, graph: Graph, node: Node) -> str | None:
        (batch, heads, rows, _), (_, _, keys, _), _ = apart(graph, node)
        size = hint(batch * heads * rows * keys) * graph.dtype(graph.operand(node, 0)).bytes
        return f"its scores are {size} bytes; expected at least {self.least}" if size < self.least else None

    def apply(self, site: Site) -> None:
        graph, (node,) = site.graph, site.nodes
        inputs, out = graph.inputs_of(node)[:4], require(graph.outputs_of(node), 0)
        attributes = {**node.attributes, "scale": scale_of(graph, node), **site["dropped"]}
        were = attributes.pop(FACTORS_WERE, None)
        were = were if were is not None and types.from_onnx(were) in TILED_TYPES else None
        attributes.pop(MASK_WAS, None)
        heads = attributes.pop("q_num_heads", 0), attributes.pop("kv_num_heads", 0)
        packed = len(graph.shape(require(inputs, 0))) == 3
        rows, keys = (_CAUSAL_TILES if node.attribute("is_causal", 0) else _TILES)[were is not None]
        attributes |= {"rows": self.rows or rows, "keys": self.keys or keys}
        origins = graph.origins_of(node)
        graph.remove(node)
        with graph.label_nodes(origins=origins):
            if were is not None:
                inputs = [*(as_it_was(graph, require(inputs, k), were) for k in range(3)), *inputs[3:]]
                out = round_to(graph, out, were)
            if packed:
                operands = zip(inputs, (heads[0], heads[1], heads[1]))
                inputs = [*(heads_apart(graph, require([n], 0), h) for n, h in operands), *inputs[3:]]
                out = heads_beside(graph, out, heads[0])
            graph.add_operator(NAME, inputs, [out], attributes, DOMAIN)

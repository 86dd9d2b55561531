"""Attention that never holds all scores: tiles of queries meet tiles of keys, and a running maximum and a sum that is
rescaled where it grows stand for the softmax.

Milakov and Gimelshein, Online normalizer calculation for softmax, 2018; Dao et al., FlashAttention, NeurIPS 2022.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import sympy

from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.operands import all_required, require
from daceopt.ir.kernel.kernel import Access, Kernel, Stage
from daceopt.ir.legality import microkernels
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.scalar import scalar, types
from daceopt.ir.scalar.dims import Dim, Shape
from daceopt.ir.scalar.types import DType
from daceopt.ops.core import values
from daceopt.ops.core.registry import Names, Operator, keeps, lowering, supports
from daceopt.ops.families.attention import SEES_A_KEY, apart
from daceopt.ops.families.attention_tiles import (
    BATCH,
    HEAD,
    KEYS,
    MEMBER,
    ROWS,
    AttentionTiles,
    D,
    E,
    K,
    Q,
    dropout_of,
    in_rows,
)

DOMAIN, NAME = "daceopt", "TiledAttention"
TILED_TYPES = microkernels.FACTORS  # by which tiles are multiplied


def why_not_tiled(graph: Graph, node: Operator) -> str | None:
    """Why an Attention operator has no tiled form."""
    return why_not_plain(graph, node) or why_not_in_tiles(graph, node)


def why_not_plain(graph: Graph, node: Operator) -> str | None:
    """Why an Attention operator is more than a softmax of masked scores."""
    inputs, outputs = graph.inputs_of(node), graph.outputs_of(node)
    if any(values.at(inputs, k) is not None for k in (4, 5, 6)) or any(values.at(outputs, k) for k in (1, 2, 3)):
        return "cached keys, lengths or scores that are asked for"
    other = ("softcap", "softmax_precision", "qk_matmul_output_mode")
    used = [a for a in other if node.attribute(a, 0)]
    windows = [a for a in ("left_window_size", "right_window_size") if node.attribute(a, -1) >= 0]
    return f"{', '.join(used + windows)} of Attention" if used or windows else None


@supports(NAME, domain=DOMAIN)
def why_not_in_tiles(graph: Graph, node: Operator) -> str | None:
    """Why operands are none that tiles are made of."""
    inputs = graph.inputs_of(node)
    shapes = apart(graph, node)
    dtypes = {graph.dtype(n) for n in all_required(inputs, 3)}
    if any(len(s) != 4 for s in shapes) or len({s[0] for s in shapes}) != 1 or not _are_shared(*(s[1] for s in shapes)):
        return f"queries, keys and values of shapes {shapes}; expected four dimensions, and heads that others share"
    if len(dtypes) != 1 or not dtypes <= set(TILED_TYPES):
        return f"element types {sorted(map(str, dtypes))}; expected one floating type"
    if any(0 in s for s in shapes) or not all(isinstance(n, int) for n in (shapes[0][3], shapes[2][3])):
        return f"shapes {shapes}; expected elements, and sizes of heads that are known at compile time"
    return _why_not_mask(graph, inputs, shapes, bool(node.attribute(SEES_A_KEY, 0)))


def _are_shared(queries: Dim, keys: Dim, values: Dim) -> bool:
    """Does each head of keys, and of values, serve as many heads of queries?"""
    are_fixed = isinstance(queries, int) and isinstance(keys, int) and keys > 0
    return keys == values and (queries == keys or (are_fixed and int(queries) % int(keys) == 0))


def _why_not_mask(graph: Graph, inputs: Names, shapes: Sequence[Shape], broadcast: bool) -> str | None:
    """``broadcast``: may the mask have one column for all keys? ONNX takes the columns that it lacks for hidden."""
    mask = values.at(inputs, 3)
    if mask is None:
        return None
    full = (*shapes[0][:3], shapes[1][2])
    fits = all(n in (1, m) for n, m in zip(reversed(graph.shape(mask)), reversed(full)))
    whole = broadcast or graph.shape(mask)[-1:] == full[-1:]
    if len(graph.shape(mask)) > 4 or not fits or not whole:
        return f"a mask of shape {graph.shape(mask)} for scores of shape {full}"
    dtype, own = graph.dtype(mask), types.compute_type(graph.dtype(require(inputs, 0)))
    return None if types.is_bool(dtype) or dtype == own else f"a mask of {dtype}; expected booleans or {own}"


@keeps(NAME, domain=DOMAIN)
def row_statistics(graph: Graph, node: Operator) -> dict[int, tuple[Shape, DType]]:
    """Of each row the largest score, and by what the exponentials relative to it are multiplied: a weight is
    exp(score - first) * second."""
    q = graph.operand(node, 0)
    kind = graph.shape(q)[:3], types.compute_type(graph.dtype(q))
    return {1: kind, 2: kind}


@lowering(NAME, domain=DOMAIN, types=TILED_TYPES)
def tiled_attention(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    """softmax(scale Q K' + mask) V in tiles of ``rows`` queries and ``keys`` keys. With ``ratio`` some weights are
    dropped, as the ``stream`` of random numbers says. The second and third output are what ``row_statistics`` says."""
    q, k, v = (in_rows(b, x) for x in all_required(inputs, 3))
    tile = int(node.attribute("rows")), int(node.attribute("keys"))
    tiles = AttentionTiles(b, node, (q, k, v), values.at(inputs, 3), (BATCH, HEAD, MEMBER, ROWS), tile)
    b.graph.add_kernel(_Tiled(tiles, outputs).kernel().rename_locals_apart(b.graph))


@dataclass(frozen=True)
class _Tiled:
    """The kernel: one iteration of its outer loops has a tile of queries, its serial loop goes over tiles of keys."""

    tiles: AttentionTiles
    outputs: Names

    def kernel(self) -> Kernel:
        stages = [*self._begin(), *self._scores(), *self._softmax(), *self._values(), *self._end()]
        local = self.tiles.local(**dict.fromkeys(("top", "total", "base", "ratio", "own", "part"), (Q,)))
        local |= self.tiles.local(**dict.fromkeys(("scores", "weights"), (Q, K)))
        local |= self.tiles.local(seen=(Q, K)) if self.tiles.is_masked else {}
        local |= self.tiles.local(**dict.fromkeys(("sum", "added"), (Q, E)))
        local |= {} if self.tiles.narrow else self.tiles.local(turned=(D, K))
        local |= self.tiles.factors(used=(Q, K)) if self.tiles.has_used else {}
        extents: dict[sympy.Symbol, Dim] = self.tiles.extents
        return Kernel("attention", extents, stages, self.tiles.outer, local, serial=(KEYS,))

    @property
    def _dropped(self) -> Any:
        return dropout_of(self.tiles.node)

    def _begin(self) -> Iterator[Stage]:
        yield self.tiles.stage((Q,), {}, lambda: (-scalar.infinity(), 0), x=_row("top"), y=_row("total"))
        yield from self.tiles.begin(sum=(Q, E))

    def _scores(self) -> Iterator[Stage]:
        tiles, (q, k, _) = self.tiles, self.tiles.operands
        rows, keys = Access(q, (BATCH, tiles.head, tiles.row, D)), Access(k, (BATCH, HEAD, tiles.key, D))
        yield from tiles.turn(KEYS, K, D, keys, "turned")
        yield tiles.product((KEYS, Q, K, D), rows, tiles.as_columns(K, D, keys, "turned"), _tile("scores"))
        if tiles.is_masked:
            yield tiles.of_seen((KEYS, Q, K), _tile("scores"), {}, lambda s: s, x=_tile("seen"))

    def _of_seen(self, reads: dict[str, Access], fn: Callable[..., sympy.Expr], x: Access) -> Stage:
        """Of masked scores, which are read twice, a local has those that are seen."""
        tiles, tile = self.tiles, (KEYS, Q, K)
        if tiles.is_masked:
            return tiles.stage(tile, {"s": _tile("seen"), **reads}, fn, x=x)
        return tiles.of_seen(tile, _tile("scores"), reads, fn, x=x)

    def _softmax(self) -> Iterator[Stage]:
        """A new maximum rescales what was summed so far. A row of which nothing is seen yet has 0 in its place."""

        def grow(old: sympy.Expr, own: sympy.Expr) -> sympy.Expr:
            top = scalar.maximum(old, own)
            return top, _base(top), sympy.exp(old - _base(top))

        tiles, tile, line = self.tiles, (KEYS, Q, K), (KEYS, Q)
        yield self._of_seen({}, lambda s: s, _row("own", "max"))
        reads = {"t": _row("top"), "w": _row("own")}
        yield tiles.stage(line, reads, grow, x=_row("top"), y=_row("base"), z=_row("ratio"))
        yield self._of_seen({"t": _row("base")}, lambda s, t: self.tiles.exp(s - t), _tile("weights"))
        yield from self._use_weights()
        yield tiles.stage(tile, {"w": _tile("weights")}, lambda w: w, x=_row("part", "sum"))
        yield tiles.add(line, _row("total"), _row("part"), _row("ratio"))

    def _use_weights(self) -> Iterator[Stage]:
        """Weights that are dropped, or rounded, in the loop that computes them."""
        tiles, dropped = self.tiles, self._dropped
        if tiles.has_used:
            position = tiles.position
            reads = {"w": _tile("weights")}
            reads |= {} if dropped is None else {"seed": Access(tiles.b.graph.seed(), (0,))}

            def keep(w: sympy.Expr, seed: sympy.Expr | None = None) -> sympy.Expr:
                return w if dropped is None else w * dropped.factor(seed, position)

            yield tiles.stage((KEYS, Q, K), reads, keep, x=_tile("used"))

    def _values(self) -> Iterator[Stage]:
        tiles = self.tiles
        read = Access(tiles.operands[2], (BATCH, HEAD, tiles.key, E))
        weights, added = _tile("used" if self.tiles.has_used else "weights"), Access("added", (Q, E))
        yield tiles.product((KEYS, Q, E, K), weights, read, added)
        yield tiles.add((KEYS, Q, E), Access("sum", (Q, E)), added, _row("ratio"))

    def _end(self) -> Iterator[Stage]:
        trusted, tiles = bool(self.tiles.node.attribute(SEES_A_KEY, 0)), self.tiles

        def over(s: sympy.Expr, t: sympy.Expr) -> sympy.Expr:
            return s / t if trusted else scalar.select(scalar.eq(t, 0), 0, s / t)

        place = (BATCH, tiles.head, tiles.row)
        reads = {"s": Access("sum", (Q, E)), "t": _row("total")}
        yield tiles.stage((Q, E), reads, over, x=Access(require(self.outputs, 0), (*place, E)))
        base, inverse = (values.at(self.outputs, k) for k in (1, 2))
        if base is not None:
            yield tiles.stage((Q,), {"t": _row("top")}, _base, x=Access(base, place))
        if inverse is not None:
            yield tiles.stage((Q,), {"t": _row("total")}, lambda t: over(sympy.Integer(1), t), x=Access(inverse, place))


def _base(top: sympy.Expr) -> sympy.Expr:
    """What exponentials of a row are relative to: 0 where nothing is seen."""
    return scalar.select(scalar.eq(top, -scalar.infinity()), 0, top)


def _row(name: str, wcr: str | None = None) -> Access:
    return Access(name, (Q,), wcr)


def _tile(name: str) -> Access:
    return Access(name, (Q, K))

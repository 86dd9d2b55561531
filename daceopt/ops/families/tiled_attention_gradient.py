"""The gradients of attention over tiles: weights again from queries, keys and what the forward left of each row, so
that no array of all pairs is in memory.

With P the weights, dP = dY V' and dS = P (dP - sum(dY Y)): dQ = dS K, dK = dS' Q, dV = P' dY, the first two times the
scale of the scores. Dao et al., FlashAttention, NeurIPS 2022, algorithm 4.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import sympy

from daceopt.ir.graph.operands import all_required, require
from daceopt.ir.kernel.kernel import Access, Kernel, Stage
from daceopt.ir.nodes.broadcasting import sum_to
from daceopt.ir.nodes.builder import Builder, IndexFunction
from daceopt.ir.scalar import types
from daceopt.ir.scalar.dims import Dim
from daceopt.ir.scalar.types import DType
from daceopt.ops.core import values
from daceopt.ops.core.registry import Names, Operator, gradient, lowering, without_gradient
from daceopt.ops.families.attention import Hiding, weights_of
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
from daceopt.ops.families.random import linear_index
from daceopt.ops.families.tiled_attention import DOMAIN, NAME, TILED_TYPES

GRADIENT = "TiledAttentionGradient"
_TILE = 64, 64  # queries and keys
_PANEL = 64, 1024  # queries beside all keys, where there are at most so many: about six are in a core's cache


@gradient(NAME, domain=DOMAIN)
def tiled_attention_gradient(
    b: Builder, node: Operator, inputs: Names, outputs: Names, grads_out: Names, needs_grad: list[bool]
) -> Names:
    """By tiles; a gradient by what was added to the scores is as large as they are, and takes all of them."""
    dy, y = grads_out[0], require(outputs, 0)
    if dy is None:
        return [None] * len(inputs)
    if len(needs_grad) > 3 and needs_grad[3]:
        return by_all_scores(b, node, inputs, y, dy)
    wide = types.compute_type(b.graph.dtype(y))
    dot = b.reduce("sum", lambda g, r: g * r, dy, y, axes=(-1,), dtype=wide, label="attention_dot")
    base, inverse = (values.at(outputs, k) for k in (1, 2))
    names = all_required(inputs, 3)
    gradients: Names = [
        b.graph.add_array("attention_grad", b.graph.shape(n), b.graph.dtype(n)) if w else None
        for n, w in zip(names, needs_grad)
    ]
    operands = [*names, values.at(inputs, 3), dy, base, inverse, dot]
    b.graph.add_operator(GRADIENT, operands, gradients, node.attributes, DOMAIN)
    return [*gradients, *[None] * (len(inputs) - len(gradients))]


@lowering(GRADIENT, domain=DOMAIN, types=TILED_TYPES)
def by_tiles(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    """Inputs are queries, keys, values, a mask or None, the gradient of the result, and three numbers for each row:
    what ``row_statistics`` says, and the product of the result and its gradient."""
    q, k, v, dy = (in_rows(b, require(inputs, position)) for position in (0, 1, 2, 4))
    row = require(inputs, 5), require(inputs, 6), require(inputs, 7)
    dq, *shared = (values.at(outputs, position) for position in range(3))
    heads = b.graph.shape(q)[1]
    dk, dv = (None if out is None else _of_each_head(b, out, heads) for out in shared)
    for near, results, tile in _passes(b.graph.shape(k)[2], dq, dk, dv):
        if any(results.values()):
            outer = BATCH, HEAD, MEMBER, ROWS if near == Q else KEYS
            tiles = AttentionTiles(b, node, (q, k, v), values.at(inputs, 3), outer, tile)
            results_of = {name: out for name, out in results.items() if out is not None}
            b.graph.add_kernel(_Pass(tiles, near, dy, row).kernel(results_of).rename_locals_apart(b.graph))
    for own, out in zip((dk, dv), shared, strict=True):
        if own is not None and out is not None and own != out:
            _add_heads(b, own, b.graph.shape(out), out)


def _of_each_head(b: Builder, out: str, heads: Dim) -> str:
    """What has the gradient of keys, or of values, by each head of queries: ``out``, where none is shared."""
    batch, own, *rest = b.graph.shape(out)
    kind = types.compute_type(b.graph.dtype(out))
    return out if own == heads else b.graph.add_array("attention_grad", (batch, heads, *rest), kind)


def _add_heads(b: Builder, by_head: str, shape: Sequence[Dim], out: str | None = None) -> str:
    """The sum over the heads of queries that share one of ``shape``."""
    batch, own, *rest = shape
    group = int(b.graph.shape(by_head)[1]) // int(own)
    apart = b.reshape(by_head, (batch, own, group, *rest))
    return b.reduce("sum", None, apart, axes=(2,), out=out, label="attention_grad")


def _passes(keys: Dim, dq: str | None, dk: str | None, dv: str | None) -> Iterator[tuple[Any, dict[str, Any], Any]]:
    """The side of which each iteration has a tile, what comes of it, and the tiles. Panels of all keys take five
    products; where these are too many, queries and keys have a pass each, whose iterations are independent."""
    rows, most = _PANEL
    if isinstance(keys, int) and keys <= most:
        yield K, {"by_first": dk, "by_second": dv, "across": dq}, (rows, keys)
        return
    yield Q, {"by_first": dq}, _TILE
    yield K, {"by_first": dk, "by_second": dv}, _TILE


without_gradient(GRADIENT, domain=DOMAIN)  # gradients of gradients are captured as products and softmaxes


@dataclass(frozen=True)
class _Pass:
    """A kernel that has a tile along ``near`` (queries or keys) in each iteration of its outer loops, and goes over the
    tiles of the others in its serial loop.

    The near side has rows of D (queries, or keys) and of E (gradients of the result, or values); so has the far side.
    Scores are their products; ``by_first`` sums dS times the far rows of D, ``by_second`` P times those of E. Where the
    near tile is all there is, ``across`` is dS transposed times the near rows of D, of each tile of the far side.
    """

    tiles: AttentionTiles
    near: sympy.Symbol
    dy: str
    row: tuple[str, str, str]  # base, inverse, dot

    @property
    def _far(self) -> sympy.Symbol:
        return K if self.near == Q else Q

    @property
    def _loop(self) -> sympy.Symbol:
        return KEYS if self.near == Q else ROWS

    def kernel(self, results: dict[str, str]) -> Kernel:
        sides = {name: size for name, size in (("by_first", D), ("by_second", E)) if name in results}
        stages = [*self.tiles.begin(**{name: (self.near, size) for name, size in sides.items()})]
        stages += [*self._turn(), *self._weights(), *self._d_scores()]
        for name, size in sides.items():
            stages += self._sum(name, size)
        stages += self._across(results["across"]) if "across" in results else ()
        stages += [self._store(name, size, results[name]) for name, size in sides.items()]
        extents, local = self.tiles.extents, self._locals(sides, "across" in results)
        return Kernel("attention_gradient", extents, stages, self.tiles.outer, local, serial=(self._loop,))

    def _locals(self, sides: dict[str, sympy.Symbol], across: bool) -> dict[str, Any]:
        tile = self.near, self._far
        loops: dict[str, tuple[sympy.Symbol, ...]] = dict.fromkeys(("scores", "weights", "d_weights"), tile)
        loops |= {} if self.tiles.narrow else {"turned": (D, self._far), "turned_values": (E, self._far)}
        loops |= {"bias": tile} if self._turns_mask else {}
        for name, size in sides.items():
            loops |= {name: (self.near, size), f"added_{name}": (self.near, size)}
        factors: dict[str, tuple[sympy.Symbol, ...]] = {"d_scores": tile} | (
            {"used": tile} if self.tiles.has_used else {}
        )
        if across:
            loops |= {"across": (self._far, D)}
            factors |= {"turned_scores": (self._far, self.near)}
        return self.tiles.local(**loops) | self.tiles.factors(**factors)

    def _rows_of(self, side: sympy.Symbol, size: sympy.Symbol) -> Access:
        """The rows, along ``size``, of queries or keys."""
        q, k, v = self.tiles.operands
        array = {(Q, D): q, (Q, E): self.dy, (K, D): k, (K, E): v}[side, size]
        batch, head, row = self._place(side)
        return Access(array, (batch, head if side == Q else HEAD, row, size))

    def _turn(self) -> Iterator[Stage]:
        for name, size in (("turned", D), ("turned_values", E)):
            yield from self.tiles.turn(self._loop, self._far, size, self._rows_of(self._far, size), name)

    def _columns(self, name: str, size: sympy.Symbol) -> Access:
        return self.tiles.as_columns(self._far, size, self._rows_of(self._far, size), name)

    def _tile(self, name: str) -> Access:
        return Access(name, (self.near, self._far))

    @property
    def _loops(self) -> tuple[Any, ...]:
        return self._loop, self.near, self._far

    def _weights(self) -> Iterator[Stage]:
        tiles, place = self.tiles, (BATCH, self.tiles.head, self.tiles.row)
        columns = self._columns("turned", D)
        yield tiles.product((*self._loops, D), self._rows_of(self.near, D), columns, self._tile("scores"))
        reads = {"t": Access(self.row[0], place), "n": Access(self.row[1], place)}
        weights, scores, bias = self._tile("weights"), self._tile("scores"), None
        if self._turns_mask:
            bias = self._tile("bias")
            yield tiles.turned_mask(self._loop, bias.array)
        yield tiles.of_seen(self._loops, scores, reads, lambda s, t, n: tiles.exp(s - t) * n, bias, x=weights)

    @property
    def _turns_mask(self) -> bool:
        return self._far == Q and self.tiles.has_turned_mask

    def _d_scores(self) -> Iterator[Stage]:
        tiles, dropped = self.tiles, dropout_of(self.tiles.node)
        columns = self._columns("turned_values", E)
        yield tiles.product((*self._loops, E), self._rows_of(self.near, E), columns, self._tile("d_weights"))
        reads = {"p": self._tile("weights"), "g": self._tile("d_weights")}
        reads["r"] = Access(self.row[2], (BATCH, tiles.head, tiles.row))
        if not self.tiles.has_used:
            yield tiles.stage(self._loops, reads, lambda p, g, r: p * (g - r), x=self._tile("d_scores"))
            return
        position = tiles.position
        reads |= {} if dropped is None else {"seed": Access(tiles.b.graph.seed(), (0,))}

        def keep(p: sympy.Expr, g: sympy.Expr, r: sympy.Expr, seed: sympy.Expr | None = None) -> sympy.Expr:
            factor = 1 if dropped is None else dropped.factor(seed, position)
            return p * (g * factor - r), p * factor

        yield tiles.stage(self._loops, reads, keep, x=self._tile("d_scores"), y=self._tile("used"))

    def _sum(self, name: str, size: sympy.Symbol) -> Iterator[Stage]:
        weights = "used" if self.tiles.has_used else "weights"
        left = self._tile("d_scores" if name == "by_first" else weights)
        total, added = Access(name, (self.near, size)), Access(f"added_{name}", (self.near, size))
        loops = (self._loop, self.near, size)
        yield self.tiles.product((*loops, self._far), left, self._rows_of(self._far, size), added)
        yield self.tiles.add(loops, total, added)

    def _across(self, out: str) -> Iterator[Stage]:
        tiles, near, far = self.tiles, self.near, self._far
        columns, part = Access("turned_scores", (far, near)), Access("across", (far, D))
        yield tiles.stage((self._loop, near, far), {"g": self._tile("d_scores")}, lambda g: g, x=columns)
        yield tiles.product((self._loop, far, D, near), columns, self._rows_of(near, D), part)
        scale, place = sympy.Float(tiles.node.attribute("scale")), self._place(far)
        yield tiles.stage((self._loop, far, D), {"s": part}, lambda s: s * scale, x=Access(out, (*place, D)))

    def _place(self, side: sympy.Symbol) -> tuple[Any, ...]:
        return BATCH, self.tiles.head, self.tiles.row if side == Q else self.tiles.key

    def _store(self, name: str, size: sympy.Symbol, out: str) -> Stage:
        """Gradients of scores are those of scaled ones."""
        tiles = self.tiles
        scale = sympy.Float(tiles.node.attribute("scale")) if name == "by_first" else 1
        reads, target = {"s": Access(name, (self.near, size))}, Access(out, (*self._place(self.near), size))
        return tiles.stage((self.near, size), reads, lambda s: s * scale, x=target)


def by_all_scores(b: Builder, node: Operator, inputs: Names, y: str, dy: str) -> Names:
    """The same with all weights in memory, and the gradient by the mask."""
    q, k, v, mask = all_required(inputs, 4)
    scale = node.attribute("scale")
    own, wide = b.graph.dtype(q), types.compute_type(b.graph.dtype(q))
    shapes = [b.graph.shape(x) for x in (q, k, v)]
    q, k, v, y, dy = (b.cast(x, wide) if own != wide else x for x in (q, k, v, y, dy))
    k, v = (_for_each_head(b, x, shapes[0][1]) for x in (k, v))
    scores = b.matmul(q, b.transpose(k, [0, 1, 3, 2]), alpha=scale)
    hiding = Hiding.of(b, node, inputs, scores, 0)
    weights = weights_of(b, node, hiding.apply(b, scores), guarded=hiding.whole_rows)
    dot = b.reduce("sum", lambda g, r: g * r, dy, y, axes=(-1,), keepdims=True, label="attention_dot")
    d_weights, used = b.matmul(dy, b.transpose(v, [0, 1, 3, 2])), weights
    dropped = dropout_of(node)
    if dropped is not None:
        factors = _factors(b, dropped, b.graph.shape(weights), b.graph.dtype(weights))
        d_weights, used = (b.elementwise(lambda x, f: x * f, x, factors, label="dropout") for x in (d_weights, weights))
    d_scores = b.elementwise(lambda p, g, r: p * (g - r), weights, d_weights, dot, label="attention_grad")
    gradients = [
        b.matmul(d_scores, k, alpha=scale),
        b.matmul(b.transpose(d_scores, [0, 1, 3, 2]), q, alpha=scale),
        b.matmul(b.transpose(used, [0, 1, 3, 2]), dy),
    ]
    gradients = [
        x if b.graph.shape(x)[1] == s[1] else _add_heads(b, x, s) for x, s in zip(gradients, shapes, strict=True)
    ]
    rounded: Names = [b.cast(x, own) if own != wide else x for x in gradients]
    by_mask = sum_to(b, None, d_scores, shape=b.graph.shape(mask), dtype=b.graph.dtype(mask))
    return [*rounded, by_mask, *[None] * (len(inputs) - 4)]


def _for_each_head(b: Builder, x: str, heads: Dim) -> str:
    """Keys, or values, of each head of queries."""
    batch, own, *rest = b.graph.shape(x)
    if own == heads:
        return x
    wide = b.expand(b.unsqueeze(x, [2]), (batch, own, int(heads) // int(own), *rest))
    return b.reshape(wide, (batch, heads, *rest))


def _factors(b: Builder, dropped: Any, shape: Any, dtype: DType) -> str:
    out = b.graph.add_array("dropout", shape, dtype)
    reads: dict[str, tuple[str, IndexFunction]] = {"seed": (b.graph.seed(), lambda *i: (0,))}

    def factor(i: tuple[sympy.Symbol, ...], seed: sympy.Expr) -> sympy.Expr:
        return dropped.factor(seed, linear_index(i, shape))

    b.map(shape, reads, {"out": (out, lambda *i: i)}, factor, label="dropout")
    return out

"""Attention that never holds all scores: tiles of queries meet tiles of keys, and a running maximum and a sum that is
rescaled where it grows stand for the softmax.

Milakov and Gimelshein, Online normalizer calculation for softmax, 2018; Dao et al., FlashAttention, NeurIPS 2022.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import sympy

from daceopt.ir import scalar, types
from daceopt.ir.broadcasting import sum_to
from daceopt.ir.builder import Builder
from daceopt.ir.graph import Dim, Graph, dim
from daceopt.ir.kernel import Access, Kernel, Stage, param
from daceopt.ir.operands import all_required, required
from daceopt.ir.tasklet import Assignment
from daceopt.ir.tiles import blocks, left
from daceopt.ops.core import values
from daceopt.ops.core.registry import Names, Operator, gradient, lowering, supports
from daceopt.ops.families.attention import SEES_A_KEY, Hiding, weights_of

DOMAIN, NAME = "daceopt", "TiledAttention"
_BATCH, _HEAD, _ROWS, _KEYS, _Q, _K, _D, _E = (param(k) for k in range(8))
_OUTER = (_BATCH, _HEAD, _ROWS)
_FLOATS = tuple(t for t in types.DTYPES if types.is_float(t))


@supports(NAME, domain=DOMAIN)
def why_not_tiled(graph: Graph, node: Operator) -> str | None:
    """Why an Attention operator has no tiled form: it takes queries, keys and values of as many heads, of rank 4."""
    inputs, outputs = graph.inputs_of(node), graph.outputs_of(node)
    shapes = [graph.shape(n) for n in all_required(inputs, 3)]
    dtypes = {graph.dtype(n) for n in all_required(inputs, 3)}
    if any(len(s) != 4 for s in shapes) or len({s[:2] for s in shapes}) != 1:
        return f"queries, keys and values of shapes {shapes}; expected four dimensions and as many heads"
    if len(dtypes) != 1 or not dtypes <= set(_FLOATS):
        return f"element types {sorted(map(str, dtypes))}; expected one floating type"
    if any(values.at(inputs, k) is not None for k in (4, 5, 6)) or any(values.at(outputs, k) for k in (2, 3)):
        return "cached keys, lengths or scores that are asked for"
    other = ("softcap", "softmax_precision", "qk_matmul_output_mode")
    used = [a for a in other if node.attribute(a, 0)]
    windows = [a for a in ("left_window_size", "right_window_size") if node.attribute(a, -1) >= 0]
    if used or windows:
        return f"{', '.join(used + windows)} of Attention"
    if any(0 in s for s in shapes) or not all(isinstance(n, int) for n in (shapes[0][3], shapes[2][3])):
        return f"shapes {shapes}; expected elements, and sizes of heads that are known at compile time"
    return _why_not_mask(graph, inputs, shapes, bool(node.attribute(SEES_A_KEY, 0)))


def default_scale(graph: Graph, node: Operator) -> float:
    """What an Attention operator multiplies its scores by."""
    return float(node.attribute("scale", 1 / math.sqrt(int(graph.shape(graph.operand(node, 0))[3]))))


def _why_not_mask(graph: Graph, inputs: Names, shapes: list[Any], broadcast: bool) -> str | None:
    """``broadcast``: may the mask have one column for all keys? ONNX takes the columns that it lacks for hidden."""
    mask = values.at(inputs, 3)
    if mask is None:
        return None
    full = (*shapes[0][:3], shapes[1][2])
    fits = all(n in (1, m) for n, m in zip(reversed(graph.shape(mask)), reversed(full)))
    whole = broadcast or graph.shape(mask)[-1:] == full[-1:]
    if len(graph.shape(mask)) > 4 or not fits or not whole:
        return f"a mask of shape {graph.shape(mask)} for scores of shape {full}"
    dtype, own = graph.dtype(mask), graph.dtype(required(inputs, 0))
    return None if types.is_bool(dtype) or dtype == own else f"a mask of {dtype}; expected booleans or {own}"


@lowering(NAME, domain=DOMAIN, types=_FLOATS)
def tiled_attention(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    """softmax(scale Q K' + mask) V in tiles of ``rows`` queries and ``keys`` keys."""
    q, k, v = all_required(inputs, 3)
    turned = _with_rows(b, b.transpose(k, [0, 1, 3, 2]))
    operands = _with_rows(b, q), turned, _with_rows(b, v)
    _Tiled(b, node, operands, values.at(inputs, 3), required(outputs, 0)).kernel().named_apart(b.graph).emit(b.graph)


def _with_rows(b: Builder, x: str) -> str:
    """``x`` with elements of a row side by side, as micro-kernels take them."""
    return x if b.graph.strides(x)[-1] == 1 else b.copy(x)


@dataclass(frozen=True)
class _Tiled:
    """The kernel: one iteration of its outer loops has a tile of queries, its serial loop goes over tiles of keys."""

    b: Builder
    node: Operator
    operands: tuple[str, str, str]  # queries, keys turned, values
    mask: str | None
    out: str

    def kernel(self) -> Kernel:
        graph, (q, kt, v) = self.b.graph, self.operands
        batch, heads, length, size = graph.shape(q)
        keys, width = graph.shape(kt)[3], graph.shape(v)[3]
        rows, columns = self._size("rows", length), self._size("keys", keys)
        extents: dict[Any, Dim] = {_BATCH: batch, _HEAD: heads}
        extents |= {_ROWS: blocks(length, rows), _KEYS: blocks(keys, columns)}
        extents |= {_Q: left(length, rows, _ROWS), _K: left(keys, columns, _KEYS), _D: size, _E: width}
        sizes: dict[str, tuple[int, ...]] = dict.fromkeys(("top", "total", "base", "ratio", "own", "part"), (rows,))
        sizes |= dict.fromkeys(("scores", "seen", "weights"), (rows, columns))
        sizes |= dict.fromkeys(("sum", "added"), (rows, int(width)))
        local = {name: (graph.dtype(q), shape) for name, shape in sizes.items()}
        stages = [*self._begin(), *self._scores(rows, columns), *self._softmax(), *self._values(columns)]
        stages += self._end(rows)
        return Kernel("attention", extents, stages, _OUTER, local, serial=(_KEYS,))

    def _size(self, option: str, extent: Dim) -> int:
        size = int(self.node.attribute(option))
        return min(size, extent) if isinstance(extent, int) else size

    def _stage(
        self, params: tuple[Any, ...], reads: dict[str, Access], fn: Callable[..., Any], **writes: Access
    ) -> Stage:
        """``fn`` gives a value for each write, from what is read."""
        dtypes = {c: types.computed(self._dtype(a.array)) for c, a in reads.items()}
        found = fn(*(scalar.symbol(c, t) for c, t in dtypes.items()))
        own = self._dtype(self.operands[0])
        results = found if isinstance(found, tuple) else (found,)
        pairs = zip(writes, results, strict=True)
        code = tuple(Assignment(scalar.symbol(c, own), sympy.sympify(e), own) for c, e in pairs)
        return Stage((*_OUTER, *params), reads, writes, code)

    def _dtype(self, array: str) -> Any:
        graph = self.b.graph
        return graph.dtype(array if array in graph.arrays() else self.operands[0])

    def _begin(self) -> Iterator[Stage]:
        yield self._stage((_Q,), {}, lambda: (-scalar.infinity(), 0), x=_row("top"), y=_row("total"))
        yield self._stage((_Q, _E), {}, lambda: 0, x=Access("sum", (_Q, _E)))

    def _scores(self, rows: int, columns: int) -> Iterator[Stage]:
        q, kt, _ = self.operands
        row, key = dim(rows * _ROWS + _Q), dim(columns * _KEYS + _K)
        reads = {"q": Access(q, (_BATCH, _HEAD, row, _D)), "k": Access(kt, (_BATCH, _HEAD, _D, key))}
        product = Access("scores", (_Q, _K), "sum")
        yield self._stage((_KEYS, _Q, _K, _D), reads, lambda u, w: u * w, x=product)
        seen, given = self._seen(row, key)
        yield self._stage((_KEYS, _Q, _K), {"s": _tile("scores"), **given}, seen, x=_tile("seen"))

    def _seen(self, row: Dim, key: Dim) -> tuple[Callable[..., Any], dict[str, Access]]:
        """The scaled and masked score, and what it reads besides the score."""
        scale, causal = sympy.Float(self.node.attribute("scale")), bool(self.node.attribute("is_causal", 0))
        given: dict[str, Access] = {}
        boolean = self.mask is not None and types.is_bool(self.b.graph.dtype(self.mask))
        if self.mask is not None:
            shape = self.b.graph.shape(self.mask)
            full = (_BATCH, _HEAD, row, key)[4 - len(shape) :]
            given["m"] = Access(self.mask, tuple(0 if n == 1 else e for n, e in zip(shape, full)))

        def seen(s: Any, m: Any = None) -> Any:
            value = s * scale
            if m is not None:
                value = value + (scalar.select(m, 0, -scalar.infinity()) if boolean else m)
            return scalar.select(scalar.le(key, row), value, -scalar.infinity()) if causal else value

        return seen, given

    def _softmax(self) -> Iterator[Stage]:
        """A new maximum rescales what was summed so far. A row of which nothing is seen yet has 0 in its place."""

        def grown(old: Any, own: Any) -> Any:
            top = scalar.maximum(old, own)
            base = scalar.select(scalar.eq(top, -scalar.infinity()), 0, top)
            return top, base, sympy.exp(old - base)

        tile, line = (_KEYS, _Q, _K), (_KEYS, _Q)
        yield self._stage(tile, {"s": _tile("seen")}, lambda s: s, x=_row("own", "max"))
        reads = {"t": _row("top"), "w": _row("own")}
        yield self._stage(line, reads, grown, x=_row("top"), y=_row("base"), z=_row("ratio"))
        reads = {"s": _tile("seen"), "t": _row("base")}
        yield self._stage(tile, reads, lambda s, t: sympy.exp(s - t), x=_tile("weights"))
        yield self._stage(tile, {"w": _tile("weights")}, lambda w: w, x=_row("part", "sum"))
        reads = {"s": _row("total"), "r": _row("ratio"), "p": _row("part")}
        yield self._stage(line, reads, lambda s, r, p: s * r + p, x=_row("total"))

    def _values(self, columns: int) -> Iterator[Stage]:
        read = Access(self.operands[2], (_BATCH, _HEAD, dim(columns * _KEYS + _K), _E))
        added = Access("added", (_Q, _E), "sum")
        yield self._stage((_KEYS, _Q, _E, _K), {"w": _tile("weights"), "v": read}, lambda w, v: w * v, x=added)
        total = Access("sum", (_Q, _E))
        reads = {"s": total, "r": _row("ratio"), "p": Access("added", (_Q, _E))}
        yield self._stage((_KEYS, _Q, _E), reads, lambda s, r, p: s * r + p, x=total)

    def _end(self, rows: int) -> Iterator[Stage]:
        trusted, row = bool(self.node.attribute(SEES_A_KEY, 0)), dim(rows * _ROWS + _Q)

        def mean(s: Any, t: Any) -> Any:
            return s / t if trusted else scalar.select(scalar.eq(t, 0), 0, s / t)

        reads = {"s": Access("sum", (_Q, _E)), "t": _row("total")}
        yield self._stage((_Q, _E), reads, mean, x=Access(self.out, (_BATCH, _HEAD, row, _E)))


def _row(name: str, wcr: str | None = None) -> Access:
    return Access(name, (_Q,), wcr)


def _tile(name: str) -> Access:
    return Access(name, (_Q, _K))


@gradient(NAME, domain=DOMAIN)
def tiled_attention_gradient(
    b: Builder, node: Operator, inputs: Names, outputs: Names, grads_out: Names, wanted: list[bool]
) -> Names:
    """The weights again from queries and keys: dS = P (dY V' - sum(dY Y))."""
    (q, k, v), y, dy = all_required(inputs, 3), required(outputs, 0), grads_out[0]
    mask, scale = values.at(inputs, 3), node.attribute("scale")
    if dy is None:
        return [None] * len(inputs)
    scores = b.matmul(q, b.transpose(k, [0, 1, 3, 2]), alpha=scale)
    hiding = Hiding.of(b, node, inputs, scores, 0)
    weights = weights_of(b, node, hiding.apply(b, scores), guarded=hiding.whole_rows)
    projected = b.reduce("sum", lambda g, r: g * r, dy, y, axes=(-1,), keepdims=True, label="attention_dot")
    d_weights = b.matmul(dy, b.transpose(v, [0, 1, 3, 2]))
    d_scores = b.elementwise(lambda p, g, r: p * (g - r), weights, d_weights, projected, label="attention_grad")
    found: Names = [
        b.matmul(d_scores, k, alpha=scale),
        b.matmul(b.transpose(d_scores, [0, 1, 3, 2]), q, alpha=scale),
        b.matmul(b.transpose(weights, [0, 1, 3, 2]), dy),
    ]
    if mask is not None:
        found.append(
            sum_to(b, None, d_scores, shape=b.graph.shape(mask), dtype=b.graph.dtype(mask)) if wanted[3] else None
        )
    return found + [None] * (len(inputs) - len(found))

"""What kernels of attention over tiles have in common: their loops, which keys a query sees, and which are dropped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import sympy

from daceopt.ir.data.arrays import SEED
from daceopt.ir.kernel.kernel import Access, Stage, param
from daceopt.ir.kernel.tasklet import Assignment
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.scalar import scalar, types
from daceopt.ir.scalar.dims import Dim, dim
from daceopt.ir.scalar.tiles import blocks, tile_extent
from daceopt.ir.scalar.types import DType
from daceopt.ops.core.registry import Operator
from daceopt.ops.families.random import linear_index

BATCH, HEAD, ROWS, KEYS, Q, K, D, E = (param(k) for k in range(8))  # two of tiles, then those inside of a tile
MEMBER = param(8)  # of the heads of queries that share the keys and values of a HEAD


@dataclass(frozen=True)
class Dropped:
    """Weights are 0 where the number of their element is below ``ratio``, and the others larger."""

    ratio: float
    stream: int

    def factor(self, seed: sympy.Expr, position: sympy.Expr) -> sympy.Expr:
        """What the weight at ``position`` among all weights is multiplied by."""
        survives = scalar.ge(scalar.uniform(seed, self.stream, position), sympy.Float(self.ratio))
        return scalar.select(survives, sympy.Float(1 / (1 - self.ratio)), 0)


def dropout_of(node: Operator) -> Dropped | None:
    """What the attributes ``ratio`` and ``stream`` say."""
    ratio = float(node.attribute("ratio", 0.0))
    return Dropped(ratio, int(node.attribute("stream")) & 0xFFFFFFFF) if ratio else None


@dataclass(frozen=True)
class AttentionTiles:
    """Queries (batch, heads, length, size), keys and values in tiles of ``rows`` queries and ``keys`` keys; heads of
    queries may share those of keys and values, each the same number of them.

    ``mask``: what is added to the scores, or which are seen. Each iteration over ``outer`` has a tile of queries, or of
    keys.
    """

    b: Builder
    node: Operator
    operands: tuple[str, str, str]
    mask: str | None
    outer: tuple[sympy.Symbol, ...]
    tile: tuple[int, int]  # queries and keys

    @property
    def extents(self) -> dict[sympy.Symbol, Dim]:
        shape, (_, k, v) = self.b.graph.shape, self.operands
        (batch, _, length, size), heads = shape(self.operands[0]), shape(k)[1]
        extents: dict[sympy.Symbol, Dim] = {BATCH: batch, HEAD: heads, MEMBER: self._group}
        extents |= {ROWS: blocks(length, self.rows), KEYS: blocks(shape(k)[2], self.columns)}
        extents[KEYS] = self._seen_tiles(extents[ROWS], extents[KEYS])
        extents |= {Q: tile_extent(length, self.rows, ROWS), K: tile_extent(shape(k)[2], self.columns, KEYS)}
        return extents | {D: size, E: shape(v)[3]}

    def _seen_tiles(self, tiles: Dim, count: Dim) -> Dim:
        """Of ``count`` tiles of keys those that the last query of a tile sees, if iterations have tiles of queries."""
        if not self._is_causal or ROWS not in self.outer or count == 1:
            return count
        if tiles == 1:  # whose loop vanishes
            return dim(sympy.Min(count, (self.rows - 1) // self.columns + 1))
        if self.rows % self.columns:
            return count
        return sympy.Min(count, self.rows // self.columns * (ROWS + 1), evaluate=False)

    @property
    def rows(self) -> int:
        return self._size(0)

    @property
    def columns(self) -> int:
        return self._size(1)

    def _size(self, side: int) -> int:
        extent = self.b.graph.shape(self.operands[side])[2]
        return min(self.tile[side], extent) if isinstance(extent, int) else self.tile[side]

    @property
    def sizes(self) -> dict[sympy.Symbol, int]:
        """Of a tile along each of its loops."""
        extents = self.extents
        return {Q: self.rows, K: self.columns, D: int(extents[D]), E: int(extents[E])}

    @property
    def _group(self) -> int:
        """Heads of queries that share one of keys and values."""
        heads, shared = (self.b.graph.shape(x)[1] for x in self.operands[:2])
        return 1 if heads == shared else int(heads) // int(shared)

    @property
    def head(self) -> sympy.Expr:
        """Of the queries."""
        return HEAD if self._group == 1 else dim(self._group * HEAD + MEMBER)

    @property
    def row(self) -> Dim:
        """Which query an iteration is about."""
        return dim(self.rows * ROWS + Q)

    @property
    def key(self) -> Dim:
        return dim(self.columns * KEYS + K)

    @property
    def narrow(self) -> bool:
        """Do micro-kernels multiply the operands as they are, with sums in a wider type?"""
        return self._own == types.BFLOAT16

    @property
    def has_used(self) -> bool:
        """Are the weights that are multiplied others than those of the softmax: dropped, or rounded?"""
        return dropout_of(self.node) is not None or self.narrow

    def exp(self, x: sympy.Expr) -> sympy.Expr:
        """A weight, which is rounded before it is multiplied where operands are narrow."""
        return scalar.exp_rounded(x) if self.narrow else scalar.exp_weight(x)

    def local(self, **arrays: tuple[sympy.Symbol, ...]) -> dict[str, tuple[DType, tuple[int, ...]]]:
        """Locals over these loops of a tile."""
        return self._locals(types.compute_type(self._own), arrays)

    def factors(self, **arrays: tuple[sympy.Symbol, ...]) -> dict[str, tuple[DType, tuple[int, ...]]]:
        """Locals that are factors of products: of the operands' own type."""
        return self._locals(self._own, arrays)

    def _locals(
        self, dtype: DType, arrays: dict[str, tuple[sympy.Symbol, ...]]
    ) -> dict[str, tuple[DType, tuple[int, ...]]]:
        sizes = self.sizes
        return {name: (dtype, tuple(sizes[p] for p in loops)) for name, loops in arrays.items()}

    @property
    def _own(self) -> sympy.Expr:
        return self.b.graph.dtype(self.operands[0])

    def turn(
        self, loop: sympy.Symbol, side: sympy.Symbol, size: sympy.Symbol, rows: Access, name: str
    ) -> Iterator[Stage]:
        """What ``as_columns`` has to have done: the tile of ``rows`` transposed, which are ``size`` long."""
        if not self.narrow:
            yield self.stage((loop, side, size), {"f": rows}, lambda x: x, x=Access(name, (size, side)))

    def as_columns(self, side: sympy.Symbol, size: sympy.Symbol, rows: Access, name: str) -> Access:
        """``rows`` as the columns of a product's right factor; narrow ones are in their own memory, as they are."""
        return rows if self.narrow else Access(name, (size, side))

    def stage(
        self,
        params: tuple[sympy.Symbol, ...],
        reads: dict[str, Access],
        fn: Callable[..., sympy.Expr],
        **writes: Access,
    ) -> Stage:
        """``fn`` gives a value for each write, from what is read."""
        dtypes = {c: types.compute_type(self._dtype(a.array)) for c, a in reads.items()}
        result = fn(*(scalar.symbol(c, t) for c, t in dtypes.items()))
        own = types.compute_type(self._own)
        results = result if isinstance(result, tuple) else (result,)
        pairs = zip(writes, results, strict=True)
        code = tuple(Assignment(scalar.symbol(c, own), sympy.sympify(e), own) for c, e in pairs)
        return Stage((*self.outer, *params), reads, writes, code)

    def _dtype(self, array: str) -> DType:
        graph = self.b.graph
        return graph.dtype(array) if array == SEED or array in graph.arrays() else types.compute_type(self._own)

    def product(self, params: tuple[sympy.Symbol, ...], a: Access, b: Access, out: Access) -> Stage:
        """The sum over the last of ``params``."""
        return self.stage(params, {"a": a, "b": b}, lambda x, y: x * y, x=Access(out.array, out.index, "sum"))

    def add(self, params: tuple[sympy.Symbol, ...], total: Access, part: Access, ratio: Access | None = None) -> Stage:
        """``part`` comes to what was summed up so far, times ``ratio``."""
        if ratio is None:
            return self.stage(params, {"s": total, "p": part}, lambda s, p: s + p, x=total)
        reads = {"s": total, "r": ratio, "p": part}
        return self.stage(params, reads, lambda s, r, p: s * r + p, x=total)

    def of_seen(
        self,
        params: tuple[sympy.Symbol, ...],
        scores: Access,
        reads: dict[str, Access],
        fn: Callable[..., sympy.Expr],
        bias: Access | None = None,
        **writes: Access,
    ) -> Stage:
        """``fn`` of the scaled and masked score, and of what else is read; ``bias`` has what ``turned_mask`` wrote."""
        scale, causal = sympy.Float(self.node.attribute("scale")), self._is_causal
        row, key = self.row, self.key
        masks: dict[str, Access] = {}
        if self.mask is not None:
            masks["m"] = bias or self._mask_access(self.mask)

        def value(s: sympy.Expr, *others: sympy.Expr) -> sympy.Expr:
            score, rest = s * scale, others[len(masks) :]
            if masks:
                score = score + (others[0] if bias else self._add_mask(others[0]))
            return fn(scalar.select(scalar.le(key, row), score, -scalar.infinity()) if causal else score, *rest)

        return self.stage(params, {"s": scores, **masks, **reads}, value, **writes)

    def turned_mask(self, loop: sympy.Symbol, name: str) -> Stage:
        """What ``of_seen`` has to have done where its loops end with queries: what the mask adds to the scores, with
        queries side by side. Exponentials of elements that stand apart in memory would be computed one by one."""
        masks = {"m": self._mask_access(str(self.mask))}
        return self.stage((loop, Q, K), masks, self._add_mask, x=Access(name, (K, Q)))

    @property
    def has_turned_mask(self) -> bool:
        """Does each key have an element of the mask for each query?"""
        return self.mask is not None and all(n != 1 for n in self.b.graph.shape(self.mask)[-2:])

    def _mask_access(self, mask: str) -> Access:
        shape = self.b.graph.shape(mask)
        full = (BATCH, self.head, self.row, self.key)[4 - len(shape) :]
        return Access(mask, tuple(0 if n == 1 else e for n, e in zip(shape, full)))

    def _add_mask(self, element: sympy.Expr) -> sympy.Expr:
        """What an element of the mask adds to a score."""
        boolean = types.is_bool(self.b.graph.dtype(str(self.mask)))
        return scalar.select(element, 0, -scalar.infinity()) if boolean else element

    @property
    def is_masked(self) -> bool:
        """Does a score take more than its scale to be seen?"""
        return self.mask is not None or self._is_causal

    @property
    def _is_causal(self) -> bool:
        return bool(self.node.attribute("is_causal", 0))

    @property
    def position(self) -> sympy.Expr:
        """Of a weight among all weights, in rows."""
        shape, (q, k, _) = self.b.graph.shape, self.operands
        return linear_index((BATCH, self.head, self.row, self.key), (*shape(q)[:3], shape(k)[2]))

    def begin(self, **arrays: tuple[sympy.Symbol, ...]) -> Iterator[Stage]:
        """Zeros, over these loops of a tile."""
        for name, loops in arrays.items():
            yield self.stage(loops, {}, lambda: 0, x=Access(name, loops))


def in_rows(b: Builder, x: str) -> str:
    """``x`` with elements of a row side by side, as micro-kernels take them."""
    return x if b.graph.strides(x)[-1] == 1 else b.copy(x)

"""GridSample and AffineGrid: pictures read at positions that are computed at run time."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import sympy

from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.operands import require
from daceopt.ir.nodes.builder import Builder, IndexFunction
from daceopt.ir.scalar import scalar, types
from daceopt.ir.scalar.dims import Dim, dim
from daceopt.ir.scalar.types import DType
from daceopt.ops.core.registry import FLOATS, NUMBERS, Names, Operator, lowering, supports
from daceopt.ops.families.interpolation import EXPRESSIONS, cubic_weight

_INT64 = types.from_name("int64")
_LINEAR, _CUBIC = (0, 1), (-1, 0, 1, 2)
_TAPS = {"nearest": (0,), "linear": _LINEAR, "bilinear": _LINEAR, "cubic": _CUBIC, "bicubic": _CUBIC}
_PADDINGS = ("zeros", "border", "reflection")
_CUBIC_COEFFICIENT = -0.75


# -------------------------------------------------------------------- GridSample


@lowering("GridSample", types=NUMBERS)
def grid_sample(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    """out[n, c, o...] = x[n, c, p...] interpolated, where grid[n, o..., :] is p in reverse, scaled to -1 ... 1.

    Where the taps of a position are, and what they weigh, is the same for all channels, and computed once.
    """
    x, grid, out = require(inputs, 0), require(inputs, 1), require(outputs, 0)
    extents, dtype = b.graph.shape(x)[2:], b.graph.dtype(x)
    taps = _Sampler(node, extents).taps_of(b, grid)
    size = dim(sympy.Mul(*extents))
    image = b.reshape(x, (*b.graph.shape(x)[:2], size))
    reads: dict[str, tuple[str, IndexFunction]] = {"x": (image, lambda *i: (*i[:2], None))}
    for t, arrays in enumerate(taps):
        reads |= {f"{kind}{t}": (name, lambda *i: (i[0], *i[2:])) for kind, name in zip("kw", arrays) if name}

    def element(i: tuple[sympy.Symbol, ...], x: sympy.Expr, **at: sympy.Expr) -> sympy.Expr:
        terms = []
        for t in range(len(taps)):
            place = scalar.cast(at[f"k{t}"], _INT64)
            value = scalar.select(scalar.ge(place, 0), scalar.load(x, scalar.clamp(place, size)), 0)
            terms.append(at[f"w{t}"] * value if f"w{t}" in at else value)
        total = sympy.Add(*terms)
        return total if types.is_float(dtype) else scalar.cast(total, dtype)

    b.map(b.graph.shape(out), reads, {"out": (out, lambda *i: i)}, element, label="grid_sample")


class _Sampler:
    """The interpolation at one position."""

    def __init__(self, node: Operator, extents: Any):
        self.extents = extents
        self.taps = _TAPS[node.attribute("mode", "linear")]
        self.padding = node.attribute("padding_mode", "zeros")
        self.aligned = bool(node.attribute("align_corners", 0))

    def taps_of(self, b: Builder, grid: str) -> list[tuple[str, str | None]]:
        """For each tap an array [n, o...] of places in the image, row-major, -1 outside, and one of weights, None where
        all are 1."""
        rank, kind, shape = len(self.extents), types.compute_type(b.graph.dtype(grid)), b.graph.shape(grid)[:-1]
        reads = {f"g{k}": (grid, lambda *i, k=k: (*i, rank - 1 - k)) for k in range(rank)}
        count, weighs = len(self.taps) ** rank, len(self.taps) > 1
        places = [b.graph.add_array("places", shape, self._index_type()) for _ in range(count)]
        weights = [b.graph.add_array("weights", shape, kind) if weighs else None for _ in range(count)]
        writes = {f"k{t}": (name, lambda *i: i) for t, name in enumerate(places)}
        writes |= {f"w{t}": (name, lambda *i: i) for t, name in enumerate(weights) if name is not None}

        def element(i: tuple[sympy.Symbol, ...], **at: sympy.Expr) -> sympy.Expr:
            taps: dict[str, tuple[str, IndexFunction]] = {}
            for t, (place, weight) in enumerate(self._taps_at([at[f"g{k}"] for k in range(rank)])):
                taps |= {f"k{t}": scalar.cast(place, self._index_type())} | ({f"w{t}": weight} if weighs else {})
            return taps

        b.map(shape, reads, writes, element, label="grid_places")
        return list(zip(places, weights))

    def _index_type(self) -> DType:
        size = dim(sympy.Mul(*self.extents))
        return types.from_name("int32" if isinstance(size, int) and size < 1 << 31 else "int64")

    def _taps_at(self, grid: list[sympy.Expr]) -> Iterator[tuple[sympy.Expr, sympy.Expr]]:
        """(place, weight) of the taps around the position ``grid`` (one coordinate in -1 ... 1 per axis)."""
        axes = [self._axis(g, n) for g, n in zip(grid, self.extents)]
        for chosen in itertools.product(*axes):
            flat: sympy.Expr = sympy.S.Zero
            for (index, _, _), n in zip(chosen, self.extents):
                flat = flat * n + index
            for _, _, inside in chosen:
                flat = flat if inside is None else scalar.select(inside, flat, -1)
            yield flat, sympy.Mul(*(weight for _, weight, _ in chosen))

    def _axis(self, g: sympy.Expr, n: sympy.Expr) -> list[tuple[sympy.Expr, sympy.Expr, sympy.Expr]]:
        """(index, weight, whether it is inside: None where always) of each tap along one axis."""
        size = _real(n)
        at = (g + 1) / 2 * (size - 1) if self.aligned else ((g + 1) * size - 1) / 2
        if len(self.taps) == 1:
            at = scalar.round_even(at)
        at = _limit(self._pad(at, size), -3, size + 2)
        if len(self.taps) == 1:
            return [self._tap(scalar.trunc(at), sympy.Integer(1), n, size)]
        first = scalar.floor(at)
        return [self._tap(first + k, self._weight(at - first, k), n, size) for k in self.taps]

    def _weight(self, part: sympy.Expr, tap: int) -> sympy.Expr:
        """Of a tap, where the position lies ``part`` behind tap 0."""
        distance = tap - part if tap > 0 else part - tap
        if len(self.taps) == 2:
            return 1 - distance
        return cubic_weight(EXPRESSIONS, distance, _CUBIC_COEFFICIENT)

    def _pad(self, at: sympy.Expr, size: Dim) -> sympy.Expr:
        """Positions outside are brought inside, unless zeros are there, or taps that each are brought inside."""
        low, high = self._bounds(size)
        outside = scalar.logical_or(scalar.lt(at, low), scalar.gt(at, high))
        if self.padding == "border" and self.taps == _CUBIC:
            return at
        if self.padding == "border":
            return scalar.select(outside, _limit(at, 0, size - 1), at)
        return scalar.select(outside, _reflect(at, low, high), at) if self.padding == "reflection" else at

    def _bounds(self, size: Dim) -> tuple[sympy.Expr, sympy.Expr]:
        return (sympy.Integer(0), size - 1) if self.aligned else (-sympy.Rational(1, 2), size - sympy.Rational(1, 2))

    def _tap(
        self, index: sympy.Expr, weight: sympy.Expr, n: sympy.Expr, size: Dim
    ) -> tuple[sympy.Expr, sympy.Expr, sympy.Expr]:
        inside = None
        if self.padding == "zeros":
            inside = scalar.logical_and(scalar.ge(index, 0), scalar.lt(index, size))
        if self.padding == "reflection":
            index = scalar.trunc(_reflect(index, *self._bounds(size)))
        return scalar.cast(_limit(index, 0, size - 1), _INT64), weight, inside


def _real(n: sympy.Expr) -> sympy.Expr:
    return n if isinstance(n, int) else scalar.cast(n, types.from_name("float32"))


def _limit(x: sympy.Expr, low: sympy.Expr, high: sympy.Expr) -> sympy.Expr:
    """NaN becomes ``low``; the gradient passes inside."""
    return scalar.select(scalar.ge(x, low), scalar.select(scalar.le(x, high), x, high), low)


def _reflect(x: sympy.Expr, low: sympy.Expr, high: sympy.Expr) -> sympy.Expr:
    """Mirrored at ``low`` and ``high`` until it lies between them."""
    span = high - low
    if span == 0:
        return low
    along = scalar.pymod(x - low, 2 * span)
    return low + scalar.select(scalar.le(along, span), along, 2 * span - along)


@supports("GridSample")
def why_not_grid_sample(graph: Graph, node: Operator) -> str | None:
    x, grid = graph.operands(node)
    shape, places = graph.shape(x), graph.shape(grid)
    if node.attribute("mode", "linear") not in _TAPS:
        return f"mode {node.attribute('mode')!r}; expected {', '.join(_TAPS)}"
    if node.attribute("padding_mode", "zeros") not in _PADDINGS:
        return f"padding_mode {node.attribute('padding_mode')!r}; expected {', '.join(_PADDINGS)}"
    if len(shape) < 3 or len(places) != len(shape) or places[-1] != len(shape) - 2:
        return f"X of shape {shape} and grid of shape {places}; expected (N, C, D...) and (N, ..., number of D)"
    if any(n == 0 for n in shape[2:]) and graph.size(graph.result(node, 0)) != 0:
        return f"X of shape {shape}: there is nothing to take values from"
    return None


# -------------------------------------------------------------------- AffineGrid


@lowering("AffineGrid", types=FLOATS)
def affine_grid(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    """out[n, o..., k] = theta[n, k, :-1] . p(o) + theta[n, k, -1]; p is the position in -1 ... 1, last axis first."""
    theta, out = require(inputs, 0), require(outputs, 0)
    extents = b.graph.shape(out)[1:-1]
    aligned, dtype = bool(node.attribute("align_corners", 0)), b.graph.dtype(theta)
    reads = {f"t{k}": (theta, lambda *i, k=k: (i[0], i[-1], k)) for k in range(len(extents) + 1)}

    def element(i: tuple[sympy.Symbol, ...], **factors: sympy.Expr) -> sympy.Expr:
        places = [_place(scalar.cast(p, dtype), n, aligned) for p, n in zip(i[1:-1], extents)]
        terms = [factors[f"t{k}"] * p for k, p in enumerate(reversed(places))]
        return sympy.Add(*terms, factors[f"t{len(extents)}"])

    b.map(b.graph.shape(out), reads, {"out": (out, lambda *i: i)}, element, label="affine_grid")


def _place(p: sympy.Expr, n: sympy.Expr, aligned: bool) -> sympy.Expr:
    """Position ``p`` of ``n`` in -1 ... 1: at the corners, or at the middles of pixels."""
    if aligned:
        return -1 + 2 * p / _real(n - 1) if n != 1 else sympy.Integer(-1)
    return (2 * p + 1) / _real(n) - 1


@supports("AffineGrid")
def why_not_affine_grid(graph: Graph, node: Operator) -> str | None:
    theta, out = graph.operand(node, 0), graph.result(node, 0)
    rank = len(graph.shape(out)) - 2
    if rank not in (2, 3) or graph.shape(theta)[1:] != (rank, rank + 1):
        return f"theta of shape {graph.shape(theta)}; expected (N, 2, 3) or (N, 3, 4)"
    if 0 in graph.shape(out):
        return f"a grid of shape {graph.shape(out)}; expected at least one point"
    return None

"""Random chains of maps, stencils, windows, steps and reductions: what polyhedral fusion is for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import dace
import sympy

from daceopt.ir.graph.graph import Graph
from daceopt.ir.nodes.library import Pool
from daceopt.ir.scalar import scalar
from tests.transformations.lowered import BINARY, UNARY, finish, size_symbol, start

SHAPES = [(2, 3, 8, 9), (1, 2, 6, 6), (size_symbol(), 2, 7, 8), (2, 1, 5, 12), (13, 17), (size_symbol(), 24), (40,)]
Step = tuple[int, int, int]


class StencilChain:
    """Interprets tuples of three numbers as builder calls: a kind, a variant, and which of the last arrays it reads."""

    def __init__(self, shape: tuple[Any, ...], steps: Sequence[Step], last: bool = False):
        """``last``: channels last in memory, for arrays of four dimensions."""
        permuted = last and len(shape) == 4
        shape = (shape[0], *shape[2:], shape[1]) if permuted else shape
        self.graph, self.b, (x,) = start(shape)
        self.names = [self.b.transpose(x, (0, 3, 1, 2)) if permuted else x]
        self._last = permuted
        makers = [self.unary, self.stencil, self.stencil, self.window, self.pool, self.step, self.reduce, self.both]
        for kind, variant, back in steps:
            source = self.names[-1 - back % min(2, len(self.names))]
            self.names += list(makers[kind % len(makers)](variant, source))
        unread = [n for n in self.names if not self.graph.all_consumers(n) and not self.graph.views_of(n)]
        kept = [self.names[steps[0][1] % len(self.names)]] if steps[0][0] % 3 == 0 else []
        inputs = self.graph.inputs
        outputs = [n for n in (*unread, self.names[-1], *kept) if self.graph.root(n)[0] not in inputs]
        finish(self.graph, *(self._in_rows(n) for n in dict.fromkeys(outputs or [self.names[-1]])))

    def _in_rows(self, name: str) -> str:
        """What a caller gets is row-major, and no input."""
        graph = self.graph
        plain = graph.is_contiguous(name) and graph.root(name)[0] not in graph.inputs
        return name if plain else str(self.b.copy(name))

    def _shape(self, name: str) -> tuple[Any, ...]:
        return self.graph.shape(name)

    def _new(self, shape: Sequence[Any], dtype: Any = dace.float32) -> str:
        strides = None
        if self._last and len(shape) == 4:
            _, c, h, w = shape
            strides = (sympy.sympify(c * h * w), 1, w * c, c)
            strides = tuple(int(s) if s == int(s) else s for s in map(sympy.sympify, strides))
        return str(self.graph.add_array("t", shape, dtype, strides))

    def _axes(self, name: str, least: int) -> list[int]:
        return [k for k, n in enumerate(self._shape(name)) if isinstance(n, int) and n >= least]

    def unary(self, variant: int, x: str) -> Iterator[str]:
        out = self._new(self._shape(x))
        self.b.elementwise(UNARY[variant % len(UNARY)], x, out=out)
        yield out

    def both(self, variant: int, x: str) -> Iterator[str]:
        """With what else has this shape."""
        other = next((n for n in self.names if n != x and self._shape(n) == self._shape(x)), x)
        out = self._new(self._shape(x))
        self.b.elementwise(BINARY[variant % len(BINARY)], x, other, out=out)
        yield out

    def stencil(self, variant: int, x: str) -> Iterator[str]:
        """Three neighbours along one axis, through views."""
        axes = self._axes(x, 4)
        if not axes:
            return
        axis, step = axes[variant % len(axes)], 1 + variant // 4 % 2
        length = (self._shape(x)[axis] - 3) // step + 1
        taps = [self.b.slice(x, [k], [k + (length - 1) * step + 1], [step], [axis]) for k in range(3)]
        out = self._new(self._shape(taps[0]))
        self.b.elementwise(lambda u, v, w: u + 2 * v - w, *taps, out=out)
        yield out

    def window(self, variant: int, x: str) -> Iterator[str]:
        """Reduced over windows of two, as loops."""
        axes = self._axes(x, 2)
        if not axes:
            return
        axis, shape = axes[variant % len(axes)], list(self._shape(x))
        shape[axis] //= 2
        out, kind = self._new(shape), ("max", "sum")[variant % 2]

        def place(*i: Any) -> tuple[Any, ...]:
            return tuple(2 * p + i[-1] if k == axis else p for k, p in enumerate(i[:-1]))

        writes = {"o": (out, lambda *i: i[:-1], kind)}
        self.b.map((*shape, 2), {"v": (x, place)}, writes, lambda i, v: v)
        yield out

    def pool(self, variant: int, x: str) -> Iterator[str]:
        shape = self._shape(x)
        if len(shape) != 4 or len(self._axes(x, 3)) < 2 or not all(isinstance(n, int) and n >= 3 for n in shape[2:]):
            return
        kernel, stride, pad = [(2, 2, 0), (3, 2, 1), (3, 1, 1), (3, 1, 0)][variant % 4]
        space = [(n + 2 * pad - kernel) // stride + 1 for n in shape[2:]]
        out = self._new((*shape[:2], *space))
        kind = ("max", "average")[variant // 4 % 2]
        window = {"kernel": [kernel] * 2, "strides": [stride] * 2, "pads": [pad] * 4}
        writes = {"Y": out}
        if variant % 3 == 0 and kind == "max":
            writes["Workspace"] = self._new((*shape[:2], *space), dace.uint8)
        self.b.library(Pool, {"X": x}, writes, kind=kind, **window)
        yield out
        if "Workspace" in writes:
            yield self.b.cast(writes["Workspace"], dace.float32)

    def step(self, variant: int, x: str) -> Iterator[str]:
        """Every second element, forward or backward, and what follows the rounding away from views."""
        axes = self._axes(x, 3)
        if not axes:
            return
        axis = axes[variant % len(axes)]
        length = self._shape(x)[axis]
        begin, end, step = [(0, length, 2), (1, length, 1), (length - 1, -1, -1)][variant % 3]
        view = self.b.slice(x, [begin], [end], [step], [axis])
        out = self._new(self._shape(view))
        self.b.elementwise(lambda v: scalar.maximum(v, -1), view, out=out)
        yield out

    def reduce(self, variant: int, x: str) -> Iterator[str]:
        rank = len(self._shape(x))
        if rank > 1:
            yield self.b.reduce(("sum", "max")[variant % 2], None, x, axes=[variant % rank], keepdims=variant % 3 == 0)


def chain(shape: tuple[Any, ...], steps: Sequence[Step], last: bool = False) -> Graph:
    """The graph of one chain."""
    return StencilChain(shape, steps, last).graph

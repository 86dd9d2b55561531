"""Random graphs of float32 arrays: maps, broadcasts, views, pads, concatenations, reductions, normalizations, products.

Values stay of order one, so that a wrong element is seen beside the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import prod
from typing import Any

import dace
import numpy as np
import sympy

import daceopt.ops  # noqa: F401  (what operators compute)
from daceopt.ir.graph.graph import Graph
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.scalar import scalar
from daceopt.ir.scalar.dims import Dim, dim

F = dace.float32
Shape = tuple[Dim, ...]
SIZE = dace.symbolic.symbol("s0", dace.int64)  # an extent that is known when running
NOMINAL = 5
LIMIT = 60_000  # elements of one array
EXTENTS = {
    "small": (1, 2, 3, 4, 5, 6, 7, 8, 12),
    "large": (1, 2, 3, 5, 16, 33, 70, 130, 600),
    "empty": (0, 1, 2, 3, 5),
    "open": (SIZE, SIZE, 1, 2, 3, 4, 6),
}

_UNARY: tuple[Callable[[Any], Any], ...] = (
    sympy.tanh,
    scalar.sigmoid,
    lambda v: scalar.maximum(v, 0),
    lambda v: v * v / (1 + v * v),
    lambda v: 1 - 2 * sympy.tanh(v),
    lambda v: scalar.softplus(v) - 1,
    lambda v: scalar.select(scalar.gt(v, 0), v, v / 4),
)
_BINARY: tuple[Callable[[Any, Any], Any], ...] = (
    lambda v, w: v + w,
    lambda v, w: v - w,
    lambda v, w: v * sympy.tanh(w),
    lambda v, w: scalar.minimum(v, w),
    lambda v, w: v / (2 + w * w),
)


def _elements(shape: Sequence[Dim]) -> int:
    """Of an array of this shape, with the open extent at its nominal value."""
    return prod(n if isinstance(n, int) else int(n.subs({SIZE: NOMINAL})) for n in shape)


class Maker:
    """Grows one graph, step by step; ``kind`` names the extents of its inputs."""

    def __init__(self, seed: int, kind: str = "small"):
        self.rng = np.random.default_rng(seed)
        self.graph = Graph(f"random_{seed}")
        self.b = Builder(self.graph, "value")
        self.extents = EXTENTS[kind]
        self.steps = [name for name in vars(Maker) if not name.startswith("_") and name not in ("build", "shape")]
        first = [self._input((SIZE, self._extent()))] if kind == "open" else []
        self.pool = [*first, *(self._input() for _ in range(self._upto(1, 3)))]

    def build(self) -> Graph:
        """Some steps, then some of the latest arrays as outputs."""
        for _ in range(self._upto(2, 9)):
            made = getattr(self, self._choose(self.steps))(self._pick())
            self.pool += [] if made is None else [made]
        inputs = set(self.graph.inputs)
        computed = [n for n in dict.fromkeys(self.pool) if n not in inputs] or [self.b.copy(self.pool[0])]
        last, others = computed[-1], computed[:-1]
        wanted = [last, *self.rng.permutation(others)[: self._upto(0, 2)]] if others else [last]
        for name in map(str, wanted):
            self.graph.add_output(self.b.copy(name) if self.graph.is_view(name) else name)
        self.graph.prune()
        return self.graph

    def shape(self, name: str) -> Shape:
        return self.graph.shape(name)

    # ---------------------------------------------------------------- steps: array in, array (or None) out

    def unary(self, x: str) -> str:
        return self.b.elementwise(self._choose(_UNARY), x)

    def binary(self, x: str) -> str:
        return self.b.elementwise(self._choose(_BINARY), x, self._partner(x))

    def pair(self, x: str) -> str:
        """Two results of one kernel."""
        first, second = self.b.elementwise(lambda v, w: (v + w, v * sympy.tanh(w)), x, self._partner(x))
        self.pool.append(first)
        return second

    def sum(self, x: str) -> str:
        """Means, as sums of quotients."""
        axes = self._axes(x)
        count = self._count(x, axes)
        fn = self._choose((lambda v: v / count, lambda v: sympy.tanh(v) / count, lambda v: v * v / count))
        return self.b.reduce("sum", fn, x, axes=axes, keepdims=self._flip())

    def row_sum(self, x: str) -> str | None:
        """A mean taken from each element of its row."""
        axes = self._axes(x)
        count = self._count(x, axes)
        mean = self.b.reduce("sum", lambda v: v / count, x, axes=axes, keepdims=True)
        return self.b.elementwise(lambda v, m: v - m, x, mean)

    def extreme(self, x: str) -> str | None:
        axes = [a for a in self._axes(x) if self.shape(x)[a] not in (0, SIZE)]
        return self.b.reduce(self._choose(("max", "min")), None, x, axes=axes, keepdims=self._flip()) if axes else None

    def product(self, x: str) -> str:
        return self.b.reduce("prod", lambda v: 1 + sympy.tanh(v) / 16, x, axes=self._axes(x), keepdims=self._flip())

    def transpose(self, x: str) -> str:
        return self.b.transpose(x, [int(a) for a in self.rng.permutation(len(self.shape(x)))])

    def reshape(self, x: str) -> str:
        size = dim(prod(self.shape(x)))
        return self.b.reshape(x, self._factors(size) if isinstance(size, int) else (size,))

    def flatten(self, x: str) -> str | None:
        """Two neighbouring axes become one."""
        shape = self.shape(x)
        if len(shape) < 2:
            return None
        k = self._upto(0, len(shape) - 2)
        return self.b.reshape(x, (*shape[:k], dim(shape[k] * shape[k + 1]), *shape[k + 2 :]))

    def slice(self, x: str) -> str:
        starts, ends, steps = [], [], []
        for n in self.shape(x):
            known = isinstance(n, int)
            first, last = sorted((self._upto(0, n), self._upto(0, n))) if known and self._flip() else (0, n)
            first, last = (0, n) if first == last and self.extents is not EXTENTS["empty"] else (first, last)
            step = self._choose((1, 1, 1, 2, 3, -1, -1, -2) if known else (1, -1))
            starts.append(first if step > 0 else last - 1)
            ends.append(last if step > 0 else first - 1)
            steps.append(step)
        return self.b.slice(x, starts, ends, steps)

    def expand(self, x: str) -> str | None:
        shape = self.shape(x)
        wide = tuple(self._extent() if n == 1 and self._flip() else n for n in shape)
        wide = (self._extent(), *wide) if self._flip() else wide
        return self.b.expand(x, wide) if _elements(wide) <= LIMIT else None

    def unsqueeze(self, x: str) -> str | None:
        rank = len(self.shape(x))
        return self.b.unsqueeze(x, [self._upto(0, rank)]) if rank < 5 else None

    def squeeze(self, x: str) -> str:
        return self.b.squeeze(x)

    def copy(self, x: str) -> str:
        return self.b.copy(x)

    def pad(self, x: str) -> str | None:
        shape = self.shape(x)
        mode = self._choose(("constant", "constant", "edge", "reflect"))
        most = [3 if mode == "constant" else min(3, n - 1) if isinstance(n, int) else 0 for n in shape]
        if min(most, default=0) < 0:
            return None
        pads = [self._upto(0, m) if self._flip() else 0 for m in (*most, *most)]
        wide = [n + pads[k] + pads[k + len(shape)] for k, n in enumerate(shape)]
        given = self.graph.add_constant("pads", np.asarray(pads, np.int64))
        return self._operator("Pad", [x, given], wide, mode=mode) if _elements(wide) <= LIMIT else None

    def concat(self, x: str) -> str | None:
        shape = self.shape(x)
        if not shape:
            return None
        axis = self._upto(0, len(shape) - 1)
        same = [n for n in self.pool if self._beside(shape, self.shape(n), axis)]
        parts = [x, *(self._choose(same) for _ in range(self._upto(1, 2)))]
        wide = list(shape)
        wide[axis] = dim(sum(self.shape(p)[axis] for p in parts))
        return self._operator("Concat", parts, wide, axis=axis) if _elements(wide) <= LIMIT else None

    def gather(self, x: str) -> str | None:
        shape = self.shape(x)
        axes = [k for k, n in enumerate(shape) if isinstance(n, int)]
        if not axes or 0 in shape:
            return None
        axis = self._choose(axes)
        picked = self.rng.integers(-shape[axis], shape[axis], self._upto(1, 6))
        index = self.graph.add_constant("index", picked)
        return self._operator("Gather", [x, index], (*shape[:axis], len(picked), *shape[axis + 1 :]), axis=axis)

    def softmax(self, x: str) -> str | None:
        rank = len(self.shape(x))
        return self._operator("Softmax", [x], self.shape(x), axis=self._upto(-rank, rank - 1)) if rank else None

    def softmax_chain(self, x: str) -> str | None:
        axes = self._axes(x)
        top = self.b.reduce("max", None, x, axes=axes, keepdims=True)
        weight = self.b.elementwise(lambda v, m: sympy.exp(v - m), x, top)
        total = self.b.reduce("sum", None, weight, axes=axes, keepdims=True)
        return self.b.elementwise(lambda e, s: e / s, weight, total)

    def layer_norm(self, x: str) -> str | None:
        shape = self.shape(x)
        if not shape:
            return None
        axis = self._upto(0, len(shape) - 1)
        scale = self._input(shape[axis:])
        return self._operator("LayerNormalization", [x, scale], shape, axis=axis, epsilon=0.25)

    def norm_chain(self, x: str) -> str:
        axes = self._axes(x)
        count = self._count(x, axes)
        mean = self.b.reduce("sum", lambda v: v / count, x, axes=axes, keepdims=True)
        square = self.b.reduce("sum", lambda v, m: (v - m) ** 2 / count, x, mean, axes=axes, keepdims=True)
        return self.b.elementwise(lambda v, m, s: (v - m) / sympy.sqrt(s + sympy.Rational(1, 4)), x, mean, square)

    def matmul(self, x: str) -> str | None:
        shape = self.shape(x)
        if len(shape) < 2:
            return None
        other = self.b.transpose(x, (*range(len(shape) - 2), len(shape) - 1, len(shape) - 2))
        if _elements((*shape[:-1], shape[-2])) > LIMIT:
            return None
        a, b = (x, other) if self._flip() else (other, x)
        return self.unary(self.b.matmul(a, b, alpha=1 / max(_elements(shape[-2:-1]), _elements(shape[-1:]), 1)))

    def window(self, x: str) -> str | None:
        """Means of overlapping parts of the last axis."""
        shape = self.shape(x)
        if not shape or not isinstance(shape[-1], int) or shape[-1] < 2:
            return None
        size, step = self._upto(2, min(shape[-1], 4)), self._upto(1, 2)
        full = (*shape[:-1], (shape[-1] - size) // step + 1)
        out = self.graph.add_array("window", full, F)
        self.b.map(
            (*full, size),
            {"x": (x, lambda *i: (*i[:-2], step * i[-2] + i[-1]))},
            {"out": (out, lambda *i: i[:-1], "sum")},
            lambda i, x: x / size,
        )
        return out

    # ---------------------------------------------------------------- choices

    def _operator(self, op_type: str, inputs: Sequence[str], shape: Sequence[int], **attributes: Any) -> str:
        out = self.graph.add_array(op_type.lower(), tuple(shape), F)
        self.graph.add_operator(op_type, list(inputs), [out], attributes)
        return out

    def _input(self, shape: Shape | None = None) -> str:
        if shape is None:
            shape = tuple(self._extent() for _ in range(self._upto(1, 4)))
            while _elements(shape) > LIMIT // 4:
                shape = shape[1:]
        name = self.graph.add_input("x", shape, F)
        if SIZE in shape:
            self.graph.symbols.setdefault(str(SIZE), (name, shape.index(SIZE)))
        return name

    def _count(self, x: str, axes: Sequence[int]) -> Dim:
        """Elements along ``axes``, at least 1 where that is known."""
        count = dim(prod(self.shape(x)[a] for a in axes))
        return max(count, 1) if isinstance(count, int) else count

    def _partner(self, x: str) -> str:
        """An array that broadcasts with ``x``: another one, or a new input of some of its axes."""
        shape = self.shape(x)
        fitting = [n for n in self.pool if n != x and self._broadcasts(shape, self.shape(n))]
        if fitting and self.rng.random() < 0.8:
            return self._choose(fitting)
        own = tuple(1 if self.rng.random() < 0.3 else n for n in shape[self._upto(0, len(shape)) :])
        return self._input(own)

    @staticmethod
    def _broadcasts(a: Shape, b: Shape) -> bool:
        rank = max(len(a), len(b))
        pairs = zip((1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b)
        wide = [m if n == 1 else n for m, n in pairs if m == n or 1 in (m, n)]
        return len(wide) == rank and _elements(wide) <= LIMIT

    @staticmethod
    def _beside(a: Shape, b: Shape, axis: int) -> bool:
        return len(a) == len(b) and all(m == n or k == axis for k, (m, n) in enumerate(zip(a, b)))

    def _axes(self, x: str) -> list[int]:
        rank = len(self.shape(x))
        if not rank:
            return []
        if self._flip():
            return [self._upto(0, rank - 1)]
        return sorted(int(a) for a in self.rng.permutation(rank)[: self._upto(1, rank)])

    def _factors(self, size: int) -> Shape:
        """A shape of this many elements."""
        if size == 0:
            return self._choose(((0,), (0, 3), (2, 0), (0, 0)))
        divisors = [d for d in range(1, size + 1) if size % d == 0]
        cuts = sorted(int(c) for c in self.rng.choice(divisors, self._upto(0, 2)))
        chain = [1, *(c for k, c in enumerate(cuts) if k == 0 or c % cuts[0] == 0), size]
        return tuple(b // a for a, b in pairwise(chain) if b % a == 0) if self._divides(chain) else (size,)

    @staticmethod
    def _divides(chain: Sequence[int]) -> bool:
        return all(b % a == 0 for a, b in pairwise(chain))

    def _pick(self) -> str:
        """Recent arrays more often than old ones."""
        back = min(int(self.rng.exponential(1.2)), len(self.pool) - 1)
        return self.pool[-1 - back]

    def _extent(self) -> Dim:
        return self._choose(self.extents)

    def _choose(self, items: Sequence[Any]) -> Any:
        return items[int(self.rng.integers(len(items)))]

    def _upto(self, first: int, last: int) -> int:
        return int(self.rng.integers(first, last + 1))

    def _flip(self) -> bool:
        return bool(self.rng.random() < 0.5)

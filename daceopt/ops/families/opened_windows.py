"""Pools as kernels, which take part in the fusion of loops: one statement, with a read per element of its window.

Places in the padding are read at the nearest element of the image. For a maximum that is as good as none, as long as
each window has an element; for a sum they count as 0.
"""

from __future__ import annotations

from itertools import product
from math import prod

import dace
import sympy

from daceopt.ir.graph.graph import Graph
from daceopt.ir.kernel.kernel import Access, Kernel, Stage, param
from daceopt.ir.kernel.tasklet import Assignment
from daceopt.ir.nodes.library import Pool
from daceopt.ir.scalar import scalar
from daceopt.ir.scalar.dims import Dim
from daceopt.ir.scalar.extents import in_scalar_code
from daceopt.ir.scalar.types import DType
from daceopt.ops.families.window_places import WindowPlaces

MOST_READS = 32  # of one statement: larger windows are loops in the library


def pool_kernel(graph: Graph, node: Pool) -> Kernel | str:
    """The kernel that does what ``node`` does, or why it stays a library node."""
    names = graph.reads(node) | graph.writes(node)
    reason = _why_not(graph, node, names["X"], names["Y"])
    return reason or _Opened(graph, node, names).kernel()


def _why_not(graph: Graph, node: Pool, x: str, y: str) -> str | None:
    rank = len(graph.shape(x)) - 2
    strides, dilations, begins, ends = node.window(rank)
    if prod(node.kernel) > MOST_READS:
        return f"a window of {prod(node.kernel)} elements; at most {MOST_READS} are statements"
    if graph.dtype(x) != graph.dtype(y) or graph.dtype(x) not in (dace.float32, dace.float64):
        return f"a pool of {graph.dtype(x)}; expected float32 or float64"
    if any(d != 1 and (node.kind == "average" or b or e) for d, b, e in zip(dilations, begins, ends)):
        return "a window with gaps, of which the nearest element of the image is none"
    image, result = graph.shape(x)[2:], graph.shape(y)[2:]
    places = WindowPlaces(image, result, [param(2 + k) for k in range(rank)], strides, dilations, begins)
    behind = node.ceil_mode and not all(places.never_behind(axis, 0) for axis in range(rank))
    if behind or any(max(b, e) >= k for b, e, k in zip(begins, ends, node.kernel)):
        return "windows that may lie outside of the image as a whole"
    if node.ceil_mode and node.kind == "average":
        return "averages of windows that reach beyond the padding"
    return "an empty image" if 0 in graph.shape(x) else None


class _Opened:
    def __init__(self, graph: Graph, node: Pool, names: dict[str, str]):
        self._graph, self._node, self._names = graph, node, names
        self._image, self._shape = graph.shape(names["X"]), graph.shape(names["Y"])
        self._dtype = graph.dtype(names["X"])
        strides, dilations, begins, self._ends = node.window(len(self._shape) - 2)
        self._params = tuple(param(k) for k in range(len(self._shape)))
        space = self._image[2:], self._shape[2:], self._params[2:]
        self._places = WindowPlaces(*space, strides, dilations, begins)
        self._offsets = list(product(*(range(k) for k in node.kernel)))
        self._code: list[Assignment] = []

    def kernel(self) -> Kernel:
        """One statement."""
        reads = {f"v{t}": Access(self._names["X"], self._index(o)) for t, o in enumerate(self._offsets)}
        writes = {"y": Access(self._names["Y"], self._params)}
        if self._node.kind == "average":
            self._average()
        elif "Workspace" in self._names:
            writes["where"] = Access(self._names["Workspace"], self._params)
            self._position()
        else:
            self._maximum()
        stage = Stage(self._params, reads, writes, tuple(self._code))
        return Kernel(self._node.label, dict(zip(self._params, self._shape)), [stage])

    def _index(self, offset: tuple[int, ...]) -> tuple[Dim, ...]:
        return *self._params[:2], *self._places.nearest(offset)

    # ------------------------------------------------------------ scalar code

    def _value(self, t: int) -> sympy.Expr:
        return scalar.symbol(f"v{t}", self._dtype)

    def _let(self, name: str, expr: sympy.Expr, dtype: DType | None = None) -> sympy.Expr:
        symbol = scalar.symbol(name, dtype or self._dtype)
        self._code.append(Assignment(symbol, expr, dtype or self._dtype))
        return symbol

    def _maximum(self) -> None:
        best = self._value(0)
        for t in range(1, len(self._offsets)):
            best = self._let(f"m{t}", scalar.maximum(best, self._value(t)))
        self._let("y", best)

    def _average(self) -> None:
        total: sympy.Expr = sympy.S.Zero
        for t, offset in enumerate(self._offsets):
            inside = self._places.inside(offset)
            total += self._value(t) if inside is None else scalar.select(inside, self._value(t), sympy.Float(0))
        self._let("y", total / scalar.cast(self._count(), self._dtype))

    def _count(self) -> sympy.Expr:
        """Elements of the window that count: those of the image, or of its declared padding, too."""
        count: sympy.Expr = sympy.S.One
        for axis, size in enumerate(self._node.kernel):
            begin, end = self._places.place(axis, 0), self._places.place(axis, size)
            most = self._image[2 + axis] + (self._ends[axis] if self._node.count_include_pad else 0)
            if not self._places.never_behind(axis, size - 1):
                end = scalar.minimum(end, in_scalar_code(most))
            if not self._node.count_include_pad and not self._places.never_before(axis, 0):
                begin = scalar.maximum(begin, sympy.S.Zero)
            count *= end - begin
        return count

    def _position(self) -> None:
        """The maximum and the first place of it, or the last one of what is no number; never one in the padding."""
        kind = self._graph.dtype(self._names["Workspace"])
        best, at = self._value(0), sympy.S.Zero
        is_started = self._places.inside(self._offsets[0])  # has there been an element of the image?
        for t, offset in enumerate(self._offsets[1:], 1):
            value, inside = self._value(t), self._places.inside(offset)
            better = scalar.logical_or(scalar.lt(best, value), scalar.isnan(value))
            if is_started is not None:
                better = scalar.logical_or(better, scalar.logical_not(is_started))
            if inside is not None:
                better = scalar.logical_and(better, inside)
            better = self._let(f"b{t}", better, dace.bool_)
            at = self._let(f"p{t}", scalar.select(better, sympy.Integer(t), at), dace.int32)
            best = self._let(f"m{t}", scalar.select(better, value, best))
            is_started = None if is_started is None or inside is None else scalar.logical_or(is_started, inside)
        self._let("y", best)
        self._let("where", scalar.cast(at, kind), kind)

"""Gradients of pools as kernels: an element of the image gathers from the windows that reach it, in their order, so
that nobody adds to what another thread writes."""

from __future__ import annotations

from itertools import product
from math import prod
from typing import Any

import dace
import sympy

from daceopt.ir.graph.graph import Graph
from daceopt.ir.kernel.kernel import Access, Kernel, Stage, param
from daceopt.ir.kernel.tasklet import Assignment
from daceopt.ir.nodes.library import PoolBackward
from daceopt.ir.scalar import scalar
from daceopt.ir.scalar.dims import dim
from daceopt.ir.scalar.extents import in_scalar_code
from daceopt.ops.families.opened_windows import MOST_READS


def pool_gradient_kernel(graph: Graph, node: PoolBackward) -> Kernel | str:
    """The kernel that does what ``node`` does, or why it stays a library node."""
    names = graph.reads(node) | graph.writes(node)
    reason = _why_not(graph, node, names)
    return reason or _Gathered(graph, node, names).kernel()


def _why_not(graph: Graph, node: PoolBackward, names: dict[str, str]) -> str | None:
    strides, dilations, _, _ = node.window(len(node.kernel))
    reads = prod(-(-k // s) for k, s in zip(node.kernel, strides))
    if reads > MOST_READS:
        return f"{reads} windows reach an element; at most {MOST_READS} are statements"
    if graph.dtype(names["dY"]) != graph.dtype(names["dX"]) or graph.dtype(names["dX"]) not in (
        dace.float32,
        dace.float64,
    ):
        return f"a gradient of {graph.dtype(names['dX'])}; expected float32 or float64"
    if any(d != 1 for d in dilations):
        return "a window with gaps"
    return "no windows" if 0 in graph.shape(names["dY"]) else None


class _Gathered:
    def __init__(self, graph: Graph, node: PoolBackward, names: dict[str, str]):
        self._node, self._names = node, names
        self._image, self._windows = graph.shape(names["dX"]), graph.shape(names["dY"])
        self._dtype = graph.dtype(names["dX"])
        self._strides, _, self._begins, self._ends = node.window(len(node.kernel))
        self._params = tuple(param(k) for k in range(len(self._image)))

    def kernel(self) -> Kernel:
        """One statement: of each axis the last window that begins at or before the element, the one before it ..."""
        counts = [range(-(-k // s)) for k, s in zip(self._node.kernel, self._strides)]
        reads, code, total = {}, [], sympy.Float(0)
        for t, back in enumerate(product(*counts)):
            index = (*self._params[:2], *(self._index(axis, b) for axis, b in enumerate(back)))
            reads[f"v{t}"] = Access(self._names["dY"], index)
            reaches, share = self._reaches(back), scalar.symbol(f"v{t}", self._dtype)
            if "Workspace" in self._names:
                reads[f"w{t}"] = Access(self._names["Workspace"], index)
                kind = self._node_workspace()
                at = scalar.cast(scalar.symbol(f"w{t}", kind), dace.int64)
                reaches = scalar.logical_and(reaches, scalar.eq(at, self._position(back)))
            else:
                share = share / scalar.cast(self._count(back), self._dtype)
            part = scalar.symbol(f"s{t}", self._dtype)
            code.append(Assignment(part, scalar.select(reaches, share, sympy.Float(0)), self._dtype))
            total = part if t == 0 else total + part
        code.append(Assignment(scalar.symbol("dx", self._dtype), total, self._dtype))
        stage = Stage(self._params, reads, {"dx": Access(self._names["dX"], self._params)}, tuple(code))
        return Kernel(self._node.label, dict(zip(self._params, self._image)), [stage])

    def _node_workspace(self) -> Any:
        return dace.uint8 if prod(self._node.kernel) <= 256 else dace.int32

    def _padded_index(self, axis: int) -> Any:
        """Where the element is in the padded image."""
        return self._params[2 + axis] + self._begins[axis]

    def _index(self, axis: int, back: int) -> Any:
        """The window, or the nearest one that there is."""
        step, last = self._strides[axis], self._windows[2 + axis] - 1
        place = self._padded_index(axis) if step == 1 else sympy.floor(self._padded_index(axis) / sympy.Integer(step))
        return sympy.Max(0, sympy.Min(dim(last), place - back))

    def _window(self, axis: int, back: int) -> Any:
        """The same in scalar code, whether there is one or not."""
        step = self._strides[axis]
        place = self._padded_index(axis) if step == 1 else scalar.idiv(self._padded_index(axis), sympy.Integer(step))
        return place - back

    def _within(self, axis: int, back: int) -> Any:
        """Where the element is in that window."""
        return self._padded_index(axis) - self._strides[axis] * self._window(axis, back)

    def _reaches(self, back: tuple[int, ...]) -> Any:
        condition = None
        for axis, b in enumerate(back):
            window = self._window(axis, b)
            tests = [
                scalar.ge(window, sympy.S.Zero),
                scalar.lt(window, in_scalar_code(sympy.sympify(self._windows[2 + axis]))),
                scalar.lt(self._within(axis, b), sympy.Integer(self._node.kernel[axis])),
            ]
            for test in tests:
                condition = test if condition is None else scalar.logical_and(condition, test)
        return condition

    def _position(self, back: tuple[int, ...]) -> Any:
        """The row-major place of the element within the window."""
        at: sympy.Expr = sympy.S.Zero
        for axis, b in enumerate(back):
            at = at * self._node.kernel[axis] + self._within(axis, b)
        return at

    def _count(self, back: tuple[int, ...]) -> Any:
        """Elements of the window that count: those of the image, or of its declared padding, too."""
        count: sympy.Expr = sympy.S.One
        for axis, b in enumerate(back):
            begin = self._strides[axis] * self._window(axis, b) - self._begins[axis]
            most = self._image[2 + axis] + (self._ends[axis] if self._node.count_include_pad else 0)
            end = scalar.minimum(begin + self._node.kernel[axis], in_scalar_code(sympy.sympify(most)))
            first = begin if self._node.count_include_pad else scalar.maximum(begin, sympy.S.Zero)
            count *= end - first
        return count

"""Depthwise convolutions as kernels, which take part in the fusion of loops: one statement, with a read per element of
its window. Where the window hangs over the border its elements are chosen by position (``index-set-splitting`` cuts
the border off)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any, TypeAlias

import dace
import sympy

from daceopt.ir.graph.graph import Graph
from daceopt.ir.nodes.builder import Builder, IndexFunction
from daceopt.ir.nodes.library import Convolution, ConvolutionBackwardData
from daceopt.ir.scalar import scalar
from daceopt.ir.scalar.dims import Shape
from daceopt.ir.scalar.symbols import param
from daceopt.ops.families.opened_windows import MOST_READS
from daceopt.ops.families.window_places import WindowPlaces

Depthwise: TypeAlias = Convolution | ConvolutionBackwardData


def why_not_opened(graph: Graph, node: Depthwise) -> str | None:
    """The reason for which a convolution, or its gradient for the input, stays a library node."""
    if node.blocked_connectors(graph):
        return "an image in blocks of channels"
    names = graph.reads(node) | graph.writes(node)
    x, y = _ends(node, names)
    weights, channels = graph.shape(names["W"]), graph.shape(x)[1]
    if weights[1] != 1 or weights[0] != node.group or channels != node.group:
        return f"{node.group} groups of {channels} channels with a kernel of shape {weights}; expected one group each"
    dtypes = {graph.dtype(n) for n in names.values()}
    if len(dtypes) != 1 or not dtypes <= {dace.float32, dace.float64}:
        return f"operands of {', '.join(sorted(map(str, dtypes)))}; expected float32 or float64"
    if any(not isinstance(k, int) for k in weights[2:]) or prod(weights[2:]) > MOST_READS:
        return f"a window of {' x '.join(map(str, weights[2:]))} elements; at most {MOST_READS} are a statement"
    if names.keys() & {"S", "T", "Z"} or getattr(node, "activation", None):
        return "an epilogue, which was fused into it"
    if isinstance(node, ConvolutionBackwardData) and any(s != 1 for s in node.window(len(weights) - 2)[0]):
        return "the gradient of windows that are not side by side"
    return "an empty image" if any(n == 0 for a in (x, y) for n in graph.shape(a)) else None


def open_convolution(graph: Graph, node: Depthwise) -> None:
    """Put a kernel where ``node`` is; ``why_not_opened`` is None.

    ``y[n, c, p] = bias[c] + sum over k of w[c, k] x[n, c, p * stride + k * dilation - begin]``; the gradient, for
    windows side by side, is the same with the window reversed.
    """
    names = graph.reads(node) | graph.writes(node)
    graph.remove(node)
    x, y = _ends(node, names)
    windows = _Windows.of(graph, node, graph.shape(x), graph.shape(y), graph.shape(names["W"])[2:])
    reads = windows.reads(x, names["W"])
    if "B" in names:
        reads["bias"] = (names["B"], lambda *i: (i[1],))
    Builder(graph, node.label).map(graph.shape(y), reads, {"y": (y, lambda *i: i)}, windows.element)


@dataclass(frozen=True)
class _Windows:
    """Windows of extents ``kernel`` over an image of shape ``image``; ``turned``: weights are read from the end."""

    image: Shape
    kernel: tuple[int, ...]
    places: WindowPlaces
    turned: bool

    @classmethod
    def of(cls, graph: Graph, node: Depthwise, image: Shape, result: Shape, window: Shape) -> _Windows:
        """Those of a convolution, or of its gradient for the input."""
        kernel = tuple(map(int, window))
        strides, dilations, begins, _ = node.window(len(kernel))
        backward = isinstance(node, ConvolutionBackwardData)
        if backward:
            begins = [(k - 1) * d - b for k, d, b in zip(kernel, dilations, begins)]
        params = [param(2 + axis) for axis in range(len(kernel))]
        return cls(image, kernel, WindowPlaces(image[2:], result[2:], params, strides, dilations, begins), backward)

    @property
    def offsets(self) -> list[tuple[int, ...]]:
        """The elements of a window, in the order in which they are added."""
        return list(product(*(range(k) for k in self.kernel)))

    def reads(self, x: str, weights: str) -> dict[str, Any]:
        """What the statement reads: each weight, and each element of the image or, where some hang over, all of it."""
        reads: dict[str, tuple[str, IndexFunction]] = {}
        for t, offset in enumerate(self.offsets):
            at = tuple(k - 1 - o for k, o in zip(self.kernel, offset)) if self.turned else offset
            reads[f"w{t}"] = (weights, lambda *i, at=at: (i[1], 0, *at))
            if self.places.inside(offset) is None:
                reads[f"x{t}"] = (x, lambda *i, o=offset: (*i[:2], *self.places.nearest(o)))
            else:
                reads["x"] = (x, lambda *i: (None,) * len(self.image))
        return reads

    def element(self, i: tuple[sympy.Symbol, ...], **read: object) -> sympy.Expr:
        """One of the result."""
        total = read.get("bias", 0)
        for t, offset in enumerate(self.offsets):
            total += self._pixel(i, t, offset, read) * read[f"w{t}"]
        return total

    def _pixel(
        self, i: tuple[sympy.Symbol, ...], t: int, offset: tuple[int, ...], read: Mapping[str, object]
    ) -> sympy.Expr:
        inside = self.places.inside(offset)
        if inside is None:
            return read[f"x{t}"]
        place = [scalar.clamp(self.places.place(axis, k), self.image[2 + axis]) for axis, k in enumerate(offset)]
        return scalar.select(inside, scalar.load(read["x"], *i[:2], *place), 0)


def _ends(node: Depthwise, names: Mapping[str, str]) -> tuple[str, str]:
    """What the windows are over, and what has one element for each."""
    return (names["X"], names["Y"]) if isinstance(node, Convolution) else (names["dY"], names["dX"])

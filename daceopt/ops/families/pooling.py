"""Pooling: maxima and averages as Pool nodes, norms as sums over padded windows, all of the image as reductions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import dace
import sympy

from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.operands import require
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.nodes.library import Pool
from daceopt.ir.scalar import scalar
from daceopt.ir.scalar.dims import Dim, dim
from daceopt.ops.core import values
from daceopt.ops.core.registry import FLOATS, Names, Operator, lowering, supports
from daceopt.ops.families.convolution import steps, why_not_window, window, zero_padded
from daceopt.ops.families.normalization import power_term, root
from daceopt.ops.families.reduction import mean


def _attributes(b: Builder, node: Operator, x: str, out: str) -> dict[str, Any]:
    """Those of the library node."""
    kernel = [int(k) for k in node.attribute("kernel_shape")]
    ceil_mode = bool(node.attribute("ceil_mode", 0))
    return {"kernel": kernel, "ceil_mode": ceil_mode, **window(b.graph, node, x, kernel, out)}


@lowering("AveragePool", types=FLOATS)
def average_pool(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    x, out = require(inputs, 0), require(outputs, 0)
    count = bool(node.attribute("count_include_pad", 0))
    b.library(Pool, {"X": x}, {"Y": out}, kind="average", count_include_pad=count, **_attributes(b, node, x, out))


@lowering("MaxPool", types=(*FLOATS, dace.int8, dace.uint8))
def max_pool(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    """Indices count through the whole input; ``storage_order`` 1 counts rows fastest within an image."""
    x, indices = require(inputs, 0), values.at(outputs, 1)
    out = outputs[0] or b.graph.add_array("maxima", b.graph.shape(require(outputs, 1)), b.graph.dtype(x))
    attributes = _attributes(b, node, x, out)
    writes = {"Y": out}
    if indices is not None:
        kind = Pool(**attributes).workspace_dtype()
        writes["Workspace"] = b.graph.add_array("positions", b.graph.shape(out), kind, b.graph.strides(out))
    b.library(Pool, {"X": x}, writes, kind="max", **attributes)
    if indices is not None:
        _indices(
            b, b.graph.shape(x), writes["Workspace"], indices, attributes, bool(node.attribute("storage_order", 0))
        )


def _indices(
    b: Builder, shape: Sequence[Dim], positions: str, out: str, attributes: dict[str, Any], columns: bool
) -> None:
    """From the position within its window to the position of each maximum within the input."""
    kernel, rank = attributes["kernel"], len(attributes["kernel"])

    def index(i: tuple[sympy.Symbol, ...], place: sympy.Expr) -> sympy.Expr:
        rest = scalar.cast(place, dace.int64)
        coordinates: list[sympy.Expr] = []
        for k in reversed(range(rank)):
            step = rest if k == 0 else scalar.pymod(rest, kernel[k])
            rest = scalar.idiv(rest, kernel[k])
            start = i[2 + k] * attributes["strides"][k] - attributes["pads"][k]
            coordinates.insert(0, start + step * attributes["dilations"][k])
        extents = list(shape[2:])
        if columns:
            coordinates, extents = coordinates[::-1], extents[::-1]
        flat = i[0] * shape[1] + i[1]
        for coordinate, extent in zip(coordinates, extents):
            flat = flat * extent + coordinate
        return flat

    b.map(
        b.graph.shape(out), {"place": (positions, lambda *i: i)}, {"out": (out, lambda *i: i)}, index, label="indices"
    )


@supports("MaxPool", "AveragePool", "LpPool")
def why_not_pool(graph: Graph, node: Operator) -> str | None:
    rank = len(node.attribute("kernel_shape"))
    return why_not_window(graph, node, rank) or _why_no_norm(graph, node) or _why_not_same(graph, node, rank)


def _why_not_same(graph: Graph, node: Operator, rank: int) -> str | None:
    """Where windows leave elements between them, SAME would take padding away: ONNX Runtime refuses, or shifts them."""
    mode, step = node.attribute("auto_pad", "NOTSET"), steps(node, rank)
    if not mode.startswith("SAME"):
        return None
    for size, kernel, stride, dilation in zip(
        graph.shape(graph.operand(node, 0))[2:], node.attribute("kernel_shape"), step["strides"], step["dilations"]
    ):
        if -(-size // stride) * stride - stride + (kernel - 1) * dilation + 1 < size:
            return f"auto_pad={mode} with strides {step['strides']}: windows of {kernel} miss some of {size} elements"
    return None


def _why_no_norm(graph: Graph, node: Operator) -> str | None:
    p = node.attribute("p", 2)
    return None if p > 0 else f"p = {p}; expected a positive one"


supports("GlobalLpPool")(_why_no_norm)


# -------------------------------------------------------------------- norms


@lowering("LpPool", types=FLOATS)
def norm_pool(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    """(sum |x|^p)^(1/p) over each window; padding counts as zero."""
    x, out, p = require(inputs, 0), require(outputs, 0), node.attribute("p", 2)
    attributes = _attributes(b, node, x, out)
    rank, strides = len(attributes["kernel"]), attributes["strides"]
    total = window_sum(
        b,
        power_term(p),
        zero_padded(b, x, attributes["pads"][:rank], _ends(b.graph, x, out, attributes)),
        b.graph.shape(out),
        {2 + k: (n, strides[k], attributes["dilations"][k]) for k, n in enumerate(attributes["kernel"])},
    )
    b.elementwise(root(p), total, out=out, label="norm")


def _ends(graph: Graph, x: str, out: str, attributes: dict[str, Any]) -> list[int]:
    """Padding at the end, so that every window lies inside: also one that ONNX lets be larger than its input."""
    result = []
    for k, (kernel, stride) in enumerate(zip(attributes["kernel"], attributes["strides"])):
        begin, end = attributes["pads"][k], attributes["pads"][k + len(attributes["kernel"])]
        reach = (graph.shape(out)[2 + k] - 1) * stride + (kernel - 1) * attributes["dilations"][k] + 1
        missing = dim(reach - graph.shape(x)[2 + k] - begin)
        least = end + stride - 1 if attributes["ceil_mode"] else end
        result.append(max(missing, 0) if isinstance(missing, int) else least)
    return result


def window_sum(
    b: Builder,
    fn: Callable[[sympy.Expr], sympy.Expr],
    x: str,
    shape: Sequence[Dim],
    windows: dict[int, tuple[int, int, int]],
) -> str:
    """Sums of ``fn(x)`` over windows: axis -> (elements, stride, dilation). ``x`` holds every element that is read."""
    out = b.graph.add_array("window_sum", shape, b.graph.dtype(x))
    rank, axes = len(shape), list(windows)

    def place(*i: sympy.Expr) -> tuple[Dim | None, ...]:
        index = list(i[:rank])
        for k, axis in enumerate(axes):
            _, stride, dilation = windows[axis]
            index[axis] = index[axis] * stride + i[rank + k] * dilation
        return tuple(index)

    extents = [*shape, *(windows[axis][0] for axis in axes)]
    b.map(
        extents, {"v": (x, place)}, {"out": (out, lambda *i: i[:rank], "sum")}, lambda i, v: fn(v), label="window_sum"
    )
    return out


@supports("LRN")
def why_not_response(graph: Graph, node: Operator) -> str | None:
    size = node.attribute("size")
    return None if size > 0 else f"size = {size}; expected a positive one"


@lowering("LRN", types=FLOATS)
def local_response(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    """x / (bias + alpha / size * s) ** beta, where s sums the squares of ``size`` channels around each."""
    x, size = require(inputs, 0), int(node.attribute("size"))
    shape = b.graph.shape(x)
    flat = b.reshape(x, (*shape[:2], sympy.Mul(*shape[2:])))
    before = (size - 1) // 2
    padded = zero_padded(b, flat, [before, 0], [size - 1 - before, 0])
    squares = window_sum(b, lambda v: v * v, padded, b.graph.shape(flat), {1: (size, 1, 1)})
    scale, beta = sympy.Float(node.attribute("alpha", 1e-4) / size), sympy.Float(node.attribute("beta", 0.75))
    bias = sympy.Float(node.attribute("bias", 1.0))
    y = b.elementwise(lambda v, s: v / scalar.power(bias + scale * s, beta), flat, squares, label="local_response")
    b.reshape(y, shape, out=outputs[0])


# -------------------------------------------------------------------- all of the image


def _space(graph: Graph, x: str) -> range:
    return range(2, len(graph.shape(x)))


@lowering("GlobalAveragePool", types=FLOATS)
def global_average_pool(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    x = require(inputs, 0)
    mean(b, None, x, axes=_space(b.graph, x), keepdims=True, out=outputs[0])


@lowering("GlobalMaxPool", types=FLOATS)
def global_max_pool(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    x = require(inputs, 0)
    b.reduce("max", None, x, axes=_space(b.graph, x), keepdims=True, out=outputs[0])


@lowering("GlobalLpPool", types=FLOATS)
def global_norm_pool(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    x, p = require(inputs, 0), node.attribute("p", 2)
    total = b.reduce("sum", power_term(p), x, axes=_space(b.graph, x), keepdims=True)
    b.elementwise(root(p), total, out=outputs[0], label="norm")


# -------------------------------------------------------------------- unpooling


@lowering("MaxUnpool", types=FLOATS)
def max_unpool(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    """Each value at its index in an array of zeros, then zeros around that up to ``output_shape``."""
    x, indices, out = require(inputs, 0), require(inputs, 1), require(outputs, 0)
    inferred = _implied_shape(b.graph, node, x)
    shape = b.graph.shape(out)
    count, size = b.graph.size(x), sympy.Mul(*inferred)
    zeros = b.full([size], 0, b.graph.dtype(x))
    flat = b.graph.add_array("unpooled", [size], b.graph.dtype(x))
    b.graph.add_operator(
        "ScatterElements", [zeros, b.reshape(indices, [count]), b.reshape(x, [count])], [flat], {"axis": 0}
    )
    ends = [g - n for g, n in zip(shape, inferred)]
    b.copy(zero_padded(b, b.reshape(flat, inferred), [0] * len(ends), ends), out=out)


def _implied_shape(graph: Graph, node: Operator, x: str) -> list[Dim]:
    """The shape that the window, the strides and the pads imply."""
    batch, channels, *space = graph.shape(x)
    kernel = node.attribute("kernel_shape")
    rank = len(kernel)
    strides, pads = node.attribute("strides") or [1] * rank, node.attribute("pads") or [0] * (2 * rank)
    sizes = [(n - 1) * strides[k] - pads[k] - pads[rank + k] + kernel[k] for k, n in enumerate(space)]
    return [batch, channels, *sizes]


@supports("MaxUnpool")
def why_not_unpool(graph: Graph, node: Operator) -> str | None:
    x, out = graph.operand(node, 0), graph.result(node, 0)
    symbolic = [e for e in (*graph.shape(x), *graph.shape(out)) if not isinstance(e, int)]
    return f"extents {symbolic} that are not fixed" if symbolic else values.unknown(graph, node, 2)

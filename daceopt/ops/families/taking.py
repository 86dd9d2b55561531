"""Gathers as PyTorch means them, in domain ``daceopt``: which indices count from the end is said, others are errors.

``Take(data, indices)``: out[a..., s..., c...] = data[a..., indices[s...], c...] along ``axis``; ``wraps`` allows
negative indices; rows at the index ``blank`` get no gradient. ``TakeAlong(data, indices)``: out[i...] =
data[i... with indices[i...] at ``axis``], no negative indices.
"""

from __future__ import annotations

import dace
import sympy

from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.operands import require
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.nodes.library import IndexAdd
from daceopt.ir.scalar import scalar
from daceopt.ir.scalar.dims import Dim, dim
from daceopt.ops.core.registry import ANY, Names, Operator, gradient, lowering, supports
from daceopt.ops.families.indexing import (
    along,
    axis_of,
    gather_elements_gradient,
    position,
    whole,
    why_empty,
)

DOMAIN = "daceopt"


def place_of(index: sympy.Expr, extent: Dim, wraps: bool) -> sympy.Expr:
    """A run-time index in int64; negative ones count from the end where they are allowed, else they are no index."""
    return position(index, extent) if wraps else scalar.cast(index, dace.int64)


@lowering("Take", domain=DOMAIN, types=ANY)
def take(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    """One map that loads."""
    data, indices, out = require(inputs, 0), require(inputs, 1), require(outputs, 0)
    axis, wraps = axis_of(b.graph, node, data), bool(node.attribute("wraps"))
    shape, depth = b.graph.shape(data), len(b.graph.shape(indices))
    b.map(
        b.graph.shape(out),
        {"x": (data, along(axis, depth)), "k": (indices, lambda *i: i[axis : axis + depth])},
        {"out": (out, lambda *i: i)},
        lambda i, x, k: scalar.load(x, place_of(k, shape[axis], wraps)),
        label="take",
    )


@gradient("Take", domain=DOMAIN)
def take_gradient(
    b: Builder, node: Operator, inputs: Names, outputs: Names, grads_out: Names, needs_grad: list[bool]
) -> Names:
    """Rows of dy are added to the rows that they were read from."""
    dy = require(grads_out, 0)
    graph = b.graph
    data, indices = require(inputs, 0), require(inputs, 1)
    shape, axis, depth = graph.shape(data), axis_of(graph, node, data), len(graph.shape(indices))
    front = [*range(axis, axis + depth), *range(axis), *range(axis + depth, len(graph.shape(dy)))]
    rows = _without_blank(b, node, b.transpose(dy, front) if axis else dy, indices)
    scattered = graph.add_array("take_grad", (shape[axis], *shape[:axis], *shape[axis + 1 :]), graph.dtype(dy))
    b.library(IndexAdd, {"Index": b.contiguous(_index(b, indices)), "dY": b.contiguous(rows)}, {"dW": scattered})
    back = [*range(1, axis + 1), 0, *range(axis + 1, len(shape))]
    return [b.transpose(scattered, back) if axis else scattered, None]


def _index(b: Builder, indices: str) -> str:
    is_index = b.graph.dtype(indices) in (dace.int32, dace.int64)
    return indices if is_index else b.cast(indices, dace.int64)


def _without_blank(b: Builder, node: Operator, rows: str, indices: str) -> str:
    """The rows, zero where the index is ``blank``."""
    blank = node.attribute("blank")
    if blank is None:
        return rows
    shape = b.graph.shape(indices)
    marks = b.reshape(indices, (*shape, *(1,) * (len(b.graph.shape(rows)) - len(shape))))
    dtype = b.graph.dtype(rows)
    return str(b.elementwise(lambda k, g: scalar.select(scalar.eq(k, blank), 0, g), marks, rows, dtype=dtype))


@lowering("TakeAlong", domain=DOMAIN, types=ANY)
def take_along(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    """One map that loads."""
    data, indices, out = require(inputs, 0), require(inputs, 1), require(outputs, 0)
    axis = axis_of(b.graph, node, data)
    b.map(
        b.graph.shape(out),
        {"x": (data, whole(len(b.graph.shape(data)))), "k": (indices, lambda *i: i)},
        {"out": (out, lambda *i: i)},
        lambda i, x, k: scalar.load(x, *i[:axis], scalar.cast(k, dace.int64), *i[axis + 1 :]),
        label="take_along",
    )


gradient("TakeAlong", domain=DOMAIN)(gather_elements_gradient)


@supports("Take", "TakeAlong", domain=DOMAIN)
def why_not_take(graph: Graph, node: Operator) -> str | None:
    """Nothing can be taken from an axis without elements."""
    data, indices = (str(n) for n in graph.inputs_of(node)[:2])
    if not graph.shape(data):
        return "data of rank 0; expected at least one dimension"
    return why_empty(graph, indices, dim(graph.shape(data)[axis_of(graph, node, data)]))

"""Gathers as PyTorch means them, in domain ``daceopt``: which indices count from the end is said, others are errors.

``Take(data, indices)``: out[a..., s..., c...] = data[a..., indices[s...], c...] along ``axis``; ``wraps`` allows
negative indices; rows at the index ``blank`` get no gradient. ``TakeAlong(data, indices)``: out[i...] =
data[i... with indices[i...] at ``axis``], no negative indices.
"""

from __future__ import annotations

import dace

from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.operands import require
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.nodes.library import IndexAdd
from daceopt.ir.scalar import scalar
from daceopt.ir.scalar.dims import dim
from daceopt.ops.core.registry import ANY, Names, Operator, gradient, lowering, supports
from daceopt.ops.families.indexing import (
    axis_of,
    gather_along,
    gather_elements_gradient,
    gather_rows,
    why_empty,
)

DOMAIN = "daceopt"


@lowering("Take", domain=DOMAIN, types=ANY)
def take(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    data, indices, out = require(inputs, 0), require(inputs, 1), require(outputs, 0)
    axis, wraps = axis_of(b.graph, node, data), bool(node.attribute("wraps"))
    gather_rows(b, data, indices, axis, out, wraps, label="take")


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
    data, indices, out = require(inputs, 0), require(inputs, 1), require(outputs, 0)
    gather_along(b, data, indices, axis_of(b.graph, node, data), out, wraps=False, label="take_along")


gradient("TakeAlong", domain=DOMAIN)(gather_elements_gradient)


@supports("Take", "TakeAlong", domain=DOMAIN)
def why_not_take(graph: Graph, node: Operator) -> str | None:
    """Nothing can be taken from an axis without elements."""
    data, indices = (str(n) for n in graph.inputs_of(node)[:2])
    if not graph.shape(data):
        return "data of rank 0; expected at least one dimension"
    return why_empty(graph, indices, dim(graph.shape(data)[axis_of(graph, node, data)]))

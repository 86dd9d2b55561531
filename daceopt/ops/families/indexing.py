"""Gathers: elements read at run-time indices, negative ones counted from the end; gradients are scattered.

An index out of range never reads outside: the run fails with an IndexError.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import dace
import sympy

from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.operands import require
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.nodes.library import IndexAdd
from daceopt.ir.scalar import scalar
from daceopt.ir.scalar.dims import Dim, dim
from daceopt.ops.core import values
from daceopt.ops.core.registry import ANY, Names, Operator, gradient, lowering, supports


def position(index: sympy.Expr, extent: Dim, wraps: bool = True) -> sympy.Expr:
    """A run-time index in int64; negative ones count from the end where it ``wraps``, else they are no index."""
    wide = scalar.cast(index, dace.int64)
    return scalar.select(scalar.lt(wide, 0), wide + extent, wide) if wraps else wide


def axis_of(graph: Graph, node: Operator, x: str, default: int = 0) -> int:
    """The attribute ``axis``, non-negative."""
    return int(node.attribute("axis", default)) % max(len(graph.shape(x)), 1)


def whole(rank: int) -> Callable[..., tuple[None, ...]]:
    """The index function of an array that is read with ``scalar.load``."""
    return lambda *i: (None,) * rank


def along(axis: int, depth: int = 1, count: int = 1) -> Callable[..., tuple[Dim | None, ...]]:
    """The index function of an array that is read with ``scalar.load`` along ``count`` axes, where ``depth`` axes of
    the result are, and elsewhere at the result's own place."""
    return lambda *i: (*i[:axis], *(None,) * count, *i[axis + depth :])


# -------------------------------------------------------------------- along an axis


@lowering("Gather", types=ANY)
def gather(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    """out[a..., s..., c...] = data[a..., indices[s...], c...]"""
    data, indices, out = require(inputs, 0), require(inputs, 1), require(outputs, 0)
    gather_rows(b, data, indices, axis_of(b.graph, node, data), out)


def gather_rows(
    b: Builder, data: str, indices: str, axis: int, out: str, wraps: bool = True, label: str = "gather"
) -> None:
    """The map of :func:`gather`, one that loads; ``wraps`` as of :func:`position`."""
    shape, depth = b.graph.shape(data), len(b.graph.shape(indices))
    b.map(
        b.graph.shape(out),
        {"x": (data, along(axis, depth)), "k": (indices, lambda *i: i[axis : axis + depth])},
        {"out": (out, lambda *i: i)},
        lambda i, x, k: scalar.load(x, position(k, shape[axis], wraps)),
        label=label,
    )


@lowering("GatherElements", types=ANY)
def gather_elements(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    """out[i...] = data[i... with indices[i...] at ``axis``]"""
    data, indices, out = require(inputs, 0), require(inputs, 1), require(outputs, 0)
    gather_along(b, data, indices, axis_of(b.graph, node, data), out)


def gather_along(
    b: Builder, data: str, indices: str, axis: int, out: str, wraps: bool = True, label: str = "gather_elements"
) -> None:
    """The map of :func:`gather_elements`, one that loads; ``wraps`` as of :func:`position`."""
    shape = b.graph.shape(data)
    b.map(
        b.graph.shape(out),
        {"x": (data, whole(len(shape))), "k": (indices, lambda *i: i)},
        {"out": (out, lambda *i: i)},
        lambda i, x, k: scalar.load(x, *i[:axis], position(k, shape[axis], wraps), *i[axis + 1 :]),
        label=label,
    )


@supports("Gather", "GatherElements")
def why_not_gather(graph: Graph, node: Operator) -> str | None:
    data, indices = graph.operands(node, 2)
    if not graph.shape(data):
        return "data of rank 0; expected at least one dimension"
    return why_empty(graph, indices, graph.shape(data)[axis_of(graph, node, data)])


def why_empty(graph: Graph, indices: str, *extents: Dim) -> str | None:
    """The reason, when there are indices into an axis that has no elements."""
    if 0 in extents and graph.size(indices) != 0:
        return f"indices into axes of extents {tuple(map(str, extents))}; expected none of 0"
    return None


def why_other_shape(graph: Graph, name: str | None, expected: Sequence[Dim]) -> str | None:
    """The reason, when an operand that is given has another shape; nothing beyond its end may be read."""
    shape = None if name is None else graph.shape(name)
    if shape is None or (len(shape) == len(expected) and all(dim(a - b) == 0 for a, b in zip(shape, expected))):
        return None
    return f"an operand of shape {tuple(map(str, shape))}; expected {tuple(map(str, expected))}"


# -------------------------------------------------------------------- by tuples


@lowering("GatherND", types=ANY)
def gather_nd(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    """out[a..., s..., c...] = data[a..., indices[a..., s..., 0], ..., indices[a..., s..., m - 1], c...]"""
    data, indices, out = require(inputs, 0), require(inputs, 1), require(outputs, 0)
    shape, depth = b.graph.shape(data), len(b.graph.shape(indices)) - 1
    first, last = _tuple_axes(b.graph, node, indices)
    b.map(
        b.graph.shape(out),
        {"x": (data, along(first, depth - first, last - first)), **tuples(indices, last - first, depth)},
        {"out": (out, lambda *i: i)},
        lambda i, x, **k: scalar.load(x, *positions(k, shape[first:last])),
        label="gather_nd",
    )


def _tuple_axes(graph: Graph, node: Operator, indices: str) -> tuple[int, int]:
    """The axes of the data, first and beyond the last, that the index tuples speak of."""
    first = int(node.attribute("batch_dims", 0))
    return first, first + int(graph.shape(indices)[-1])


@supports("GatherND")
def why_not_gather_nd(graph: Graph, node: Operator) -> str | None:
    data, indices = graph.operands(node, 2)
    reason = why_no_tuples(graph, indices)
    if reason is not None:
        return reason
    first, last = _tuple_axes(graph, node, indices)
    if first < 0 or first >= len(graph.shape(indices)) or last > len(graph.shape(data)):
        return f"batch_dims {first} with data of shape {graph.shape(data)} and indices of {graph.shape(indices)}"
    return why_empty(graph, indices, *graph.shape(data)[first:last])


def why_no_tuples(graph: Graph, indices: str) -> str | None:
    """The reason, when the length of the index tuples is not known."""
    shape = graph.shape(indices)
    if not shape or not isinstance(shape[-1], int):
        return f"indices of shape {shape}; expected a last dimension that is known at compile time"
    return None


def tuples(indices: str, length: int, depth: int) -> dict[str, Any]:
    """Reads of the index tuples ``indices[i[:depth], :]``, one connector per entry."""
    return {f"k{m}": (indices, lambda *i, m=m: (*i[:depth], m)) for m in range(length)}


def positions(entries: dict[str, Any], extents: Sequence[Dim]) -> list[Any]:
    """The indices that :func:`tuples` read, non-negative."""
    return [position(entries[f"k{m}"], extent) for m, extent in enumerate(extents)]


# -------------------------------------------------------------------- others that pick by index


@lowering("OneHot", types=ANY)
def one_hot(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    """values[1] where the new axis equals the index, values[0] elsewhere and for indices out of range."""
    indices, chosen, out = require(inputs, 0), require(inputs, 2), require(outputs, 0)
    shape, axis = b.graph.shape(out), axis_of(b.graph, node, require(outputs, 0), -1)
    b.map(
        shape,
        {
            "k": (indices, lambda *i: (*i[:axis], *i[axis + 1 :])),
            "off": (chosen, lambda *i: (0,)),
            "on": (chosen, lambda *i: (1,)),
        },
        {"out": (out, lambda *i: i)},
        lambda i, k, off, on: scalar.select(scalar.eq(position(k, shape[axis]), i[axis]), on, off),
        label="one_hot",
    )


@supports("OneHot")
def why_not_one_hot(graph: Graph, node: Operator) -> str | None:
    """The declared shape of the output says how deep it is, if the depth is known."""
    depth = graph.inputs_of(node)[1]
    return values.unknown(graph, node, 1) if values.scalar_value(graph, depth) is None else None


@lowering("ReverseSequence", types=ANY)
def reverse_sequence(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    """The first ``sequence_lens[n]`` steps of batch entry n in reverse order, the others as they are."""
    x, lengths, out = require(inputs, 0), require(inputs, 1), require(outputs, 0)
    time, batch = node.attribute("time_axis", 0), node.attribute("batch_axis", 1)

    def element(i: tuple[sympy.Symbol, ...], x: sympy.Expr, n: sympy.Expr) -> sympy.Expr:
        mirrored = scalar.select(scalar.lt(i[time], n), n - 1 - i[time], scalar.select(scalar.lt(n, 0), -1, i[time]))
        return scalar.load(x, *(mirrored if d == time else k for d, k in enumerate(i)))

    shape = b.graph.shape(x)
    reads = {"x": (x, whole(len(shape))), "n": (lengths, lambda *i: (i[batch],))}
    b.map(shape, reads, {"out": (out, lambda *i: i)}, element, label="reverse_sequence")


@supports("ReverseSequence")
def why_not_reverse_sequence(graph: Graph, node: Operator) -> str | None:
    x, lengths = graph.operands(node)
    axes = {node.attribute("batch_axis", 1), node.attribute("time_axis", 0)}
    if len(axes) != 2 or not axes <= set(range(len(graph.shape(x)))):
        return f"batch and time along the axes {sorted(axes)} of shape {graph.shape(x)}"
    return why_other_shape(graph, lengths, [graph.shape(x)[node.attribute("batch_axis", 1)]])


@gradient("ReverseSequence")
def reverse_sequence_gradient(
    b: Builder, node: Operator, inputs: Names, outputs: Names, grads_out: Names, needs_grad: list[bool]
) -> Names:
    """A reversal is its own transpose."""
    dy = require(grads_out, 0)
    dx = b.graph.add_array("reverse_grad", b.graph.shape(dy), b.graph.dtype(dy))
    reverse_sequence(b, node, [dy, inputs[1]], [dx])
    return [dx, None]


# -------------------------------------------------------------------- gradients


def _scatter_add(b: Builder, index: str, rows: str, shape: Sequence[Dim]) -> str:
    """Zeros of ``shape``, to whose rows ``rows`` are added."""
    scattered = b.graph.add_array("gather_grad", shape, b.graph.dtype(rows))
    b.library(IndexAdd, {"Index": b.contiguous(index), "dY": b.contiguous(rows)}, {"dW": scattered})
    return scattered


@gradient("Gather")
def gather_gradient(
    b: Builder, node: Operator, inputs: Names, outputs: Names, grads_out: Names, needs_grad: list[bool]
) -> Names:
    """Rows of dy are added to the rows they were read from; the gathered axis is brought to the front as a view."""
    dy = require(grads_out, 0)
    data, indices = require(inputs, 0), require(inputs, 1)
    shape, axis, depth = b.graph.shape(data), axis_of(b.graph, node, data), len(b.graph.shape(indices))
    front = [*range(axis, axis + depth), *range(axis), *range(axis + depth, len(b.graph.shape(dy)))]
    rows = b.transpose(dy, front) if axis else dy
    scattered = _scatter_add(b, indices, rows, (shape[axis], *shape[:axis], *shape[axis + 1 :]))
    back = [*range(1, axis + 1), 0, *range(axis + 1, len(shape))]
    return [b.transpose(scattered, back) if axis else scattered, None]


@gradient("GatherElements")
def gather_elements_gradient(
    b: Builder, node: Operator, inputs: Names, outputs: Names, grads_out: Names, needs_grad: list[bool]
) -> Names:
    """Elements of dy are added at their row-major positions in dx."""
    dy = require(grads_out, 0)
    data = require(inputs, 0)
    return [scatter_along(b, require(inputs, 1), dy, b.graph.shape(data), axis_of(b.graph, node, data)), None]


def scatter_along(b: Builder, indices: str, dy: str, shape: Sequence[Dim], axis: int) -> str:
    """Zeros of ``shape``, to which dy is added where :func:`gather_along` read."""
    count = b.graph.size(dy)
    flat = b.reshape(element_positions(b, indices, shape, axis), (count,))
    return b.reshape(_scatter_add(b, flat, b.reshape(dy, (count,)), (sympy.Mul(*shape),)), shape)


def element_positions(b: Builder, indices: str, shape: Sequence[Dim], axis: int) -> str:
    """Row-major positions in an array of ``shape`` of the elements ``[i... with indices[i...] at axis]``."""
    extents = b.graph.shape(indices)
    checked = [d for d, (n, extent) in enumerate(zip(extents, shape)) if d == axis or not _fits(n, extent)]

    def place(i: tuple[sympy.Symbol, ...], k: sympy.Expr) -> sympy.Expr:
        return linear([*i[:axis], position(k, shape[axis]), *i[axis + 1 :]], shape, checked)

    return _positions(b, extents, {"k": (indices, lambda *i: i)}, place)


def _fits(count: Dim, extent: Dim) -> bool:
    return dim(count - extent) == 0 or (isinstance(count, int) and isinstance(extent, int) and count <= extent)


def tuple_positions(b: Builder, indices: str, extents: Sequence[Dim]) -> str:
    """Row-major positions in an array of ``extents`` of the elements that the tuples ``indices[..., :]`` name."""
    outer, length = b.graph.shape(indices)[:-1], len(extents)

    def place(i: tuple[sympy.Symbol, ...], **k: sympy.Expr) -> sympy.Expr:
        return linear(positions(k, extents), extents, range(length))

    return _positions(b, outer, tuples(indices, length, len(outer)), place)


def _positions(b: Builder, extents: Sequence[Dim], reads: dict[str, Any], place: Callable[..., sympy.Expr]) -> str:
    flat = b.graph.add_array("position", extents, dace.int64)
    b.map(extents, reads, {"out": (flat, lambda *i: i)}, place, label="position")
    return flat


def linear(index: Sequence[sympy.Expr], extents: Sequence[Dim], checked: Sequence[int]) -> sympy.Expr:
    """The row-major position of ``index``; beyond the end where an index of the axes ``checked`` is out of range."""
    flat: sympy.Expr = sympy.S.Zero
    for k, extent in zip(index, extents, strict=True):
        flat = flat * extent + k
    for axis in checked:
        inside = scalar.logical_and(scalar.ge(index[axis], 0), scalar.lt(index[axis], extents[axis]))
        flat = scalar.select(inside, flat, sympy.Mul(*extents))
    return flat

"""Gather and GatherElements: run-time indices, negative ones counted from the end; gradients are scattered.

An index out of range never reads outside: the run fails with an IndexError.
"""

from __future__ import annotations

from typing import Any

from daceopt.ir import scalar, types
from daceopt.ir.builder import Builder
from daceopt.ir.graph import Dim, Graph
from daceopt.ops.library import IndexAdd
from daceopt.ops.registry import Names, Operator, gradient, lowering, supports


def _position(index: Any, extent: Dim) -> Any:
    """Negative indices count from the end."""
    return scalar.select(scalar.lt(index, 0), index + extent, index)


def _element(array: Any, before: Any, index: Any, after: Any, extent: Dim) -> Any:
    """The generated code checks the bounds of a load and makes the run fail with an IndexError."""
    return scalar.load(array, *before, _position(index, extent), *after)


def _axis(graph: Graph, node: Operator, x: str) -> int:
    return int(node.attribute("axis", 0)) % len(graph.shape(x))


@lowering("Gather")
def gather(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    """out[a..., s..., c...] = data[a..., indices[s...], c...]"""
    data, indices, out = str(inputs[0]), str(inputs[1]), str(outputs[0])
    shape, axis, depth = b.graph.shape(data), _axis(b.graph, node, data), len(b.graph.shape(indices))
    index = _int64(b, indices)

    def element(i: Any, x: Any, k: Any) -> Any:
        return _element(x, i[:axis], k, i[axis + depth :], shape[axis])

    b.map(
        b.graph.shape(out),
        {"x": (data, lambda *i: (None,) * len(shape)), "k": (index, lambda *i: i[axis : axis + depth])},
        {"out": (out, lambda *i: i)},
        element,
        label="gather",
    )


def _int64(b: Builder, indices: str) -> str:
    """Indices wide enough to be added to an extent."""
    wide = types.from_name("int64")
    return indices if types.itemsize(b.graph.dtype(indices)) >= 4 else b.cast(indices, wide)


@lowering("GatherElements")
def gather_elements(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    """out[i...] = data[i... with indices[i...] at ``axis``]"""
    data, indices, out = str(inputs[0]), str(inputs[1]), str(outputs[0])
    shape, axis = b.graph.shape(data), _axis(b.graph, node, data)

    def element(i: Any, x: Any, k: Any) -> Any:
        return _element(x, i[:axis], k, i[axis + 1 :], shape[axis])

    b.map(
        b.graph.shape(out),
        {"x": (data, lambda *i: (None,) * len(shape)), "k": (_int64(b, indices), lambda *i: i)},
        {"out": (out, lambda *i: i)},
        element,
        label="gather_elements",
    )


@supports("Gather", "GatherElements")
def why_not_gather(graph: Graph, node: Operator) -> str | None:
    data, indices = (str(n) for n in graph.inputs_of(node)[:2])
    if not graph.shape(data):
        return "data of rank 0; expected at least one dimension"
    extent = graph.shape(data)[_axis(graph, node, data)]
    if extent == 0 and graph.size(indices) != 0:
        return f"indices into an axis of extent 0 of {graph.shape(data)}"
    return None


@gradient("Gather")
def gather_gradient(
    b: Builder, node: Operator, inputs: Names, outputs: Names, grads_out: Names, wanted: list[bool]
) -> Names:
    """Rows of dy are added to the rows they were read from; the gathered axis is brought to the front as a view."""
    dy = grads_out[0]
    if dy is None or not wanted[0]:
        return [None, None]
    data, indices = str(inputs[0]), str(inputs[1])
    shape, axis, depth = b.graph.shape(data), _axis(b.graph, node, data), len(b.graph.shape(indices))
    rank = len(b.graph.shape(dy))
    front = [*range(axis, axis + depth), *range(axis), *range(axis + depth, rank)]
    rows = b.transpose(dy, front) if axis else dy
    scattered = b.graph.add_array("gather_grad", (shape[axis], *shape[:axis], *shape[axis + 1 :]), b.graph.dtype(data))
    b.library(IndexAdd, {"Index": b.contiguous(_int64(b, indices)), "dY": b.contiguous(rows)}, {"dW": scattered})
    back = [*range(1, axis + 1), 0, *range(axis + 1, len(shape))]
    return [b.transpose(scattered, back) if axis else scattered, None]


@gradient("GatherElements")
def gather_elements_gradient(
    b: Builder, node: Operator, inputs: Names, outputs: Names, grads_out: Names, wanted: list[bool]
) -> Names:
    """Elements of dy are added at their row-major positions in dx."""
    dy = grads_out[0]
    if dy is None or not wanted[0]:
        return [None, None]
    data, indices = str(inputs[0]), str(inputs[1])
    shape, axis, count = b.graph.shape(data), _axis(b.graph, node, data), b.graph.size(dy)
    flat = b.graph.add_array("position", b.graph.shape(dy), types.from_name("int64"))

    def position(i: Any, k: Any) -> Any:
        linear: Any = 0
        for d, extent in enumerate(shape):
            linear = linear * extent + (_position(k, extent) if d == axis else i[d])
        return linear

    b.map(b.graph.shape(dy), {"k": (_int64(b, indices), lambda *i: i)}, {"out": (flat, lambda *i: i)}, position)
    scattered = b.graph.add_array("gather_grad", (b.graph.size(data),), b.graph.dtype(data))
    b.library(IndexAdd, {"Index": b.reshape(flat, (count,)), "dY": b.reshape(dy, (count,))}, {"dW": scattered})
    return [b.reshape(scattered, shape), None]

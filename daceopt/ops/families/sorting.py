"""Selections by rank or by value: TopK, Unique, NonZero, Compress, NonMaxSuppression.

How much the last four find depends on the data: an output has the size its declaration gives, and the run fails with an
error when there is more or less.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any

import dace
import numpy as np

from daceopt.errors import DaceoptError
from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.operands import require
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.scalar.dims import Shape
from daceopt.ops.core import algorithm, values
from daceopt.ops.core.registry import (
    ANY,
    BOOL,
    NUMBERS,
    Names,
    Operator,
    gradient,
    lowering,
    supports,
    without_gradient,
)
from daceopt.ops.families.indexing import axis_of, gather_along, gather_rows, scatter_along, why_empty, why_other_shape


def _expect_count(operator: str, count: int, expected: int) -> None:
    if count != expected:
        raise DaceoptError(f"{operator}: expected {expected} results (the declared output shape), found {count}")


# -------------------------------------------------------------------- TopK


@lowering("TopK", types=NUMBERS)
def top_k(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    """The indices by selection, the values read at them; in order also where ``sorted=0`` would allow any."""
    x, largest_of, indices = require(inputs, 0), outputs[0], values.at(outputs, 1)
    axis = axis_of(b.graph, node, x, -1)
    shape = b.graph.shape(largest_of or require(outputs, 1))
    places = _top_places(b, node, x, axis, shape, indices)
    if largest_of is not None:
        gather_along(b, x, places, axis, largest_of)


def _top_places(b: Builder, node: Operator, x: str, axis: int, shape: Shape, out: str | None = None) -> str:
    """The indices along ``axis`` of the elements that a result of ``shape`` has."""
    places = out or b.graph.add_array("top_indices", shape, dace.int64)
    top_indices(b, x, axis, places, bool(node.attribute("largest", 1)), Ties.LOWER_INDEX_FIRST)
    return places


class Ties(enum.IntEnum):
    """Which of equal elements a selection takes, and in what order; as ``top_indices.h`` numbers them."""

    LOWER_INDEX_FIRST = 0
    ATEN = 1  # those that ``torch.topk`` takes on a CPU, in its order
    ATEN_UNSORTED = 2  # those of ``sorted=False``
    ATEN_SORT = 3  # all, as ``torch.sort`` orders them


def top_indices(b: Builder, x: str, axis: int, out: str, largest: bool, ties: Ties) -> None:
    """Write to ``out`` (int64) where the largest or smallest elements along ``axis`` are, as many as it holds."""
    parameters = [*algorithm.extents_around(b.graph.shape(x), axis), b.graph.shape(out)[axis], int(largest), int(ties)]
    algorithm.call(b, "top_indices", [x], [out], parameters)


@supports("TopK")
def why_not_top_k(graph: Graph, node: Operator) -> str | None:
    x, first = graph.operand(node, 0), graph.outputs_of(node)[0]
    if not graph.shape(x):
        return "an input of rank 0; expected at least one dimension"
    reason = values.unknown(graph, node, 1)
    axis = axis_of(graph, node, x, -1)
    extent, k = graph.shape(x)[axis], graph.shape(first or graph.result(node, 1))[axis]
    if reason is None and isinstance(extent, int) and isinstance(k, int) and k > extent:
        return f"k of {k} along an axis of {extent} elements"
    return reason


@gradient("TopK")
def top_k_gradient(
    b: Builder, node: Operator, inputs: Names, outputs: Names, grads_out: Names, needs_grad: list[bool]
) -> Names:
    """dy is added where the values were found; where nothing reads the indices, they are looked for again."""
    absent: Names = [None] * (len(inputs) - 1)
    dy, x = grads_out[0], require(inputs, 0)
    if dy is None or not needs_grad[0]:
        return [None, *absent]
    axis = axis_of(b.graph, node, x, -1)
    places = values.at(outputs, 1) or _top_places(b, node, x, axis, b.graph.shape(dy))
    return [scatter_along(b, places, dy, b.graph.shape(x), axis), *absent]


@algorithm.reference("top_indices")
def _top_indices(inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], parameters: Sequence[int]) -> None:
    """NaN is the largest."""
    import torch

    x, (k, largest, ties) = algorithm.around(inputs[0], parameters), parameters[3:]
    if k > x.shape[1]:
        raise IndexError(f"TopK: k of {k} along an axis of {x.shape[1]} elements")
    # ranks can be negated for any type
    ranks = np.unique(x, return_inverse=True)[1].reshape(x.shape)
    if ties == Ties.LOWER_INDEX_FIRST:
        order = np.argsort(-ranks if largest else ranks, axis=1, kind="stable")[:, :k]
    elif ties == Ties.ATEN_SORT:
        order = torch.sort(torch.from_numpy(ranks), 1, bool(largest)).indices.numpy()
    else:
        top = torch.topk(torch.from_numpy(ranks), k, 1, bool(largest), sorted=ties == Ties.ATEN)
        order = top.indices.numpy()
    outputs[0][...] = order.reshape(outputs[0].shape)


# -------------------------------------------------------------------- Unique


@lowering("Unique", types=NUMBERS + BOOL)
def unique(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    """Distinct elements, or slices along ``axis``; NaN equals NaN."""
    x = require(inputs, 0)
    extents: Sequence[Any] = (1, b.graph.size(x), 1)
    axis = node.attribute("axis")
    if axis is not None:
        extents = algorithm.extents_around(b.graph.shape(x), axis % len(b.graph.shape(x)))
    results = [*outputs, None, None, None][:4]
    count = _unique_count(b.graph, node, outputs)
    algorithm.call(b, "unique", [x], results, [*extents, count, node.attribute("sorted", 1)])


@supports("Unique")
def why_not_unique(graph: Graph, node: Operator) -> str | None:
    if _unique_count(graph, node, graph.outputs_of(node)) is None:
        return "only the output inverse_indices is read, whose size does not tell how many there are"
    return None


def _unique_count(graph: Graph, node: Operator, outputs: Names) -> Any:
    """How many there are, as the declared outputs say."""
    if outputs[0] is not None:
        return graph.shape(outputs[0])[node.attribute("axis", 0)]
    sized = [n for n in (values.at(outputs, 1), values.at(outputs, 3)) if n is not None]
    return graph.shape(sized[0])[0] if sized else None


@algorithm.reference("unique")
def _unique(inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], parameters: Sequence[int]) -> None:
    x, (count, in_order) = algorithm.around(inputs[0], parameters), parameters[3:]
    # ranks order NaN and are equal where elements are
    ranks = np.unique(x, return_inverse=True)[1].reshape(x.shape)
    slices = np.moveaxis(ranks, 1, 0).reshape(x.shape[1], x.shape[0] * x.shape[2])
    _, first, inverse, counts = np.unique(slices, axis=0, return_index=True, return_inverse=True, return_counts=True)
    _expect_count("Unique", len(first), count)
    order = np.arange(count) if in_order else np.argsort(first)
    y = x[:, first[order]]
    for out, value in zip(outputs, (y, first[order], np.argsort(order)[inverse.reshape(-1)], counts[order])):
        if out is not None:
            out[...] = value.reshape(out.shape)


# -------------------------------------------------------------------- NonZero, Compress


@lowering("NonZero", types=NUMBERS + BOOL)
def nonzero(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    """Coordinates, one column per element that is not zero; a scalar counts as a vector of one element."""
    _nonzero(b, require(inputs, 0), require(outputs, 0))


def _nonzero(b: Builder, x: str, out: str) -> None:
    shape = b.graph.shape(x) or (1,)
    algorithm.call(b, "nonzero", [x], [out], [b.graph.shape(out)[1], len(shape), *shape])


@supports("NonZero")
def why_not_nonzero(graph: Graph, node: Operator) -> str | None:
    rank, shape = len(graph.shape(graph.operand(node, 0))), graph.shape(graph.result(node, 0))
    return None if shape[0] == max(rank, 1) else f"an output of shape {shape}; expected {max(rank, 1)} rows"


@algorithm.reference("nonzero")
def _nonzero_reference(inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], parameters: Sequence[int]) -> None:
    places = np.stack(np.nonzero(inputs[0].reshape(parameters[2:])))
    _expect_count("NonZero", places.shape[1], parameters[0])
    outputs[0][...] = places


@lowering("Compress", types=ANY)
def compress(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    """The slices along ``axis`` (default: the elements) for which the condition holds: found, then gathered."""
    x, condition, out = require(inputs, 0), require(inputs, 1), require(outputs, 0)
    if node.attribute("axis") is None:
        x = b.reshape(x, (b.graph.size(x),))
    axis = axis_of(b.graph, node, x)
    extent, length = b.graph.shape(x)[axis], b.graph.shape(condition)[0]
    if isinstance(extent, int) and isinstance(length, int) and extent < length:
        condition = b.slice(condition, [0], [extent])
    count = b.graph.shape(out)[axis]
    places = b.graph.add_array("selected", (1, count), dace.int64)
    _nonzero(b, condition, places)
    gather_rows(b, x, b.reshape(places, (count,)), axis, out)


@supports("Compress")
def why_not_compress(graph: Graph, node: Operator) -> str | None:
    x, out = graph.operand(node, 0), graph.result(node, 0)
    return why_empty(graph, out, graph.size(x))


# -------------------------------------------------------------------- NonMaxSuppression


@lowering("NonMaxSuppression")
def non_max_suppression(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    """Greedily by score, within each class of each batch entry."""
    boxes, scores, out = require(inputs, 0), require(inputs, 1), require(outputs, 0)
    batches, classes, count = b.graph.shape(scores)
    parameters = [batches, classes, count, b.graph.shape(out)[0], node.attribute("center_point_box", 0)]
    algorithm.call(b, "non_max_suppression", [boxes, scores, *[*inputs[2:], None, None, None][:3]], [out], parameters)


@supports("NonMaxSuppression")
def why_not_non_max_suppression(graph: Graph, node: Operator) -> str | None:
    boxes, _, *scalars = graph.inputs_of(node)
    batches, _, count = graph.shape(graph.operand(node, 1))
    reason = why_other_shape(graph, boxes, (batches, count, 4))
    empty = [n for n in scalars if n is not None and graph.size(n) != 1]
    return reason or (f"limits {empty} of other than one element" if empty else None)


@algorithm.reference("non_max_suppression")
def _non_max_suppression(
    inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], parameters: Sequence[int]
) -> None:
    boxes, scores, limit, worst, least = inputs
    most = 0 if limit is None else int(limit.reshape(-1)[0])
    corners, result = _corners(boxes, bool(parameters[4])), []
    for n, c in np.ndindex(scores.shape[:2]):
        score = scores[n, c]
        chosen: list[int] = []
        for k in np.argsort(-score, kind="stable"):
            if len(chosen) >= most or (least is not None and not score[k] > least.reshape(-1)[0]):
                break
            overlaps = [_overlap(corners[n, k], corners[n, better]) for better in chosen]
            if not any(o > (0 if worst is None else worst.reshape(-1)[0]) for o in overlaps):
                chosen.append(k)
        result += [(n, c, k) for k in chosen]
    _expect_count("NonMaxSuppression", len(result), parameters[3])
    outputs[0][...] = np.reshape(result, outputs[0].shape)


def _corners(boxes: np.ndarray, centre: bool) -> np.ndarray:
    """[..., (top, left, bottom, right)]"""
    if centre:
        x, y, width, height = np.moveaxis(boxes, -1, 0)
        return np.stack([y - height / 2, x - width / 2, y + height / 2, x + width / 2], -1)
    return np.concatenate([np.minimum(boxes[..., :2], boxes[..., 2:]), np.maximum(boxes[..., :2], boxes[..., 2:])], -1)


def _overlap(a: np.ndarray, b: np.ndarray) -> float:
    """Intersection over union; 0 where a box is empty."""
    sides = np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2])
    areas = np.prod(a[2:] - a[:2]), np.prod(b[2:] - b[:2])
    if (sides <= 0).any() or min(areas) <= 0:
        return 0.0
    shared = np.prod(sides)
    return float(shared / (areas[0] + areas[1] - shared))


without_gradient("Unique", "NonZero", "NonMaxSuppression")

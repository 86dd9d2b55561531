"""Operators of vision models that look at regions of an image: RoiAlign, MaxRoiPool."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import ceil
from typing import Any

import numpy as np

from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.operands import require
from daceopt.ir.nodes.builder import Builder
from daceopt.ops.core import algorithm
from daceopt.ops.core.registry import FLOATS, Names, Operator, gradient, lowering, supports

_MODES = {"avg": 0, "max": 1}
_FUNCTIONS = {"RoiAlign": "roi_align", "MaxRoiPool": "roi_pool"}


def _operands(b: Builder, node: Operator, inputs: Names, result: str) -> tuple[list[str | None], list[Any]]:
    """(arrays, parameters) of the algorithms; ``result`` has the shape of the operator's."""
    regions, _, rows, columns = b.graph.shape(result)
    scale = b.constant(np.asarray([node.attribute("spatial_scale", 1.0)], np.float64))
    parameters = [*b.graph.shape(require(inputs, 0)), regions, rows, columns]
    if node.op_type == "RoiAlign":
        mode = node.attribute("coordinate_transformation_mode", "half_pixel")
        half = node.since_version >= 16 and mode == "half_pixel"
        parameters += [node.attribute("sampling_ratio", 0), _MODES[node.attribute("mode", "avg")], int(half)]
    return [*inputs, scale], parameters


@lowering("RoiAlign", "MaxRoiPool", types=FLOATS)
def pool_regions(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    """RoiAlign: averages (or maxima) of interpolated samples in the bins of each region. Mask R-CNN, arXiv:1703.06870.
    MaxRoiPool: maxima over the bins. Fast R-CNN, arXiv:1504.08083.

    X: [N, C, H, W]; rois: [R, 4] as x1, y1, x2, y2 and batch_indices: [R], or rois: [R, 5] as image, x1, y1, x2, y2;
    output: [R, C, rows, columns].
    """
    operands, parameters = _operands(b, node, inputs, require(outputs, 0))
    algorithm.call(b, _FUNCTIONS[node.op_type], operands, outputs, parameters)


@supports("RoiAlign")
def why_not_align(graph: Graph, node: Operator) -> str | None:
    mode = node.attribute("mode", "avg")
    return None if mode in _MODES else f"mode {mode!r}; expected avg or max"


@gradient("RoiAlign", "MaxRoiPool")
def pool_regions_gradient(
    b: Builder, node: Operator, inputs: Names, outputs: Names, grads_out: Names, needs_grad: list[bool]
) -> Names:
    """By the image: to the neighbours of samples by their weights, to the place of a maximum. Where regions are has no
    gradient, as in torchvision."""
    result: Names = [None] * len(inputs)
    x, dy = require(inputs, 0), grads_out[0]
    if dy is None or not needs_grad[0]:
        return result
    result[0] = b.graph.add_array("roi_grad", b.graph.shape(x), b.graph.dtype(x))
    operands, parameters = _operands(b, node, inputs, dy)
    algorithm.call(b, f"{_FUNCTIONS[node.op_type]}_gradient", [*operands, dy], [result[0]], parameters)
    return result


# -------------------------------------------------------------------- RoiAlign in NumPy


@algorithm.reference("roi_align")
def _align(inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], parameters: Sequence[int]) -> None:
    x, largest = inputs[0], parameters[8]
    for (r, row, column), image, places, weights in _samples(inputs, parameters):
        samples = x[image][:, places[0], places[1]] * weights
        if largest:
            outputs[0][r, :, row, column] = samples.max(axis=1) if len(weights) else 0
        else:
            outputs[0][r, :, row, column] = samples.sum(axis=1) / max(len(weights) // 4, 1)


@algorithm.reference("roi_align_gradient")
def _align_gradient(inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], parameters: Sequence[int]) -> None:
    x, dy, dx, largest = inputs[0], inputs[4], outputs[0], parameters[8]
    for (r, row, column), image, places, weights in _samples(inputs, parameters):
        for c in range(x.shape[1] if len(weights) else 0):
            grad = dy[r, c, row, column]
            if largest:
                k = int((x[image, c, places[0], places[1]] * weights).argmax())
                dx[image, c, places[0][k], places[1][k]] += grad * weights[k]
            else:
                np.add.at(dx[image, c], tuple(places), grad * weights / (len(weights) // 4))


def _samples(
    inputs: Sequence[np.ndarray], parameters: Sequence[int]
) -> Iterator[tuple[Any, int, np.ndarray, np.ndarray]]:
    """For each bin its position, image, and the neighbours of its samples: places [2, 4 samples] and weights."""
    rois, images, scale = inputs[1:4]
    height, width = parameters[2:4]
    rows, columns, ratio, _, half = parameters[5:]
    for r, (roi, image) in enumerate(zip(rois * scale[0] - (0.5 if half else 0.0), images)):
        spans = [roi[3] - roi[1], roi[2] - roi[0]]
        bins = [(s if half else max(s, 1.0)) / n for s, n in zip(spans, (rows, columns))]
        grids = [ratio if ratio > 0 else max(ceil(s), 0) for s in bins]
        for row, column in product(range(rows), range(columns)):
            neighbours: list[tuple[int, int, float]] = []
            for i, j in product(range(grids[0]), range(grids[1])):
                y = roi[1] + (row + (i + 0.5) / grids[0]) * bins[0]
                z = roi[0] + (column + (j + 0.5) / grids[1]) * bins[1]
                neighbours += _neighbours(y, z, height, width)
            table = np.array(neighbours, np.float64).reshape(-1, 3)
            yield (r, row, column), int(image), table[:, :2].T.astype(np.int64), table[:, 2]


def _neighbours(y: float, z: float, height: int, width: int) -> list[tuple[int, int, float]]:
    """The four neighbours of a sample and their weights; zeros outside of the image."""
    if not (-1 <= y <= height and -1 <= z <= width):
        return [(0, 0, 0.0)] * 4
    pairs = []
    for at, extent in ((y, height), (z, width)):
        at = min(max(at, 0.0), extent - 1.0)
        low = int(at)
        pairs.append(((low, 1 - (at - low)), (min(low + 1, extent - 1), at - low)))
    return [(i, j, u * v) for (i, u), (j, v) in product(*pairs)]


# -------------------------------------------------------------------- MaxRoiPool in NumPy


@algorithm.reference("roi_pool")
def _pool(inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], parameters: Sequence[int]) -> None:
    x = inputs[0]
    for (r, row, column), image, vertical, horizontal in _parts(inputs, parameters):
        window = x[image, :, vertical, horizontal]
        outputs[0][r, :, row, column] = window.max(axis=(1, 2)) if window.size else 0


@algorithm.reference("roi_pool_gradient")
def _pool_gradient(inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], parameters: Sequence[int]) -> None:
    x, dy, dx = inputs[0], inputs[3], outputs[0]
    for (r, row, column), image, vertical, horizontal in _parts(inputs, parameters):
        for c in range(x.shape[1]):
            window, target = x[image, c, vertical, horizontal], dx[image, c, vertical, horizontal]
            if window.size:
                target[np.unravel_index(int(window.argmax()), window.shape)] += dy[r, c, row, column]


def _parts(inputs: Sequence[np.ndarray], parameters: Sequence[int]) -> Iterator[tuple[Any, int, slice, slice]]:
    """For each bin its position, image, and which pixels it has."""
    rois, scale = inputs[1:3]
    limits, (rows, columns) = parameters[2:4], parameters[5:]
    for r, roi in enumerate(rois):
        x1, y1, x2, y2 = (int(np.trunc(v * scale[0] + np.copysign(0.5, v))) for v in roi[1:])
        for row, column in product(range(rows), range(columns)):
            vertical, horizontal = _bin(y1, y2, row, rows, limits[0]), _bin(x1, x2, column, columns, limits[1])
            yield (r, row, column), int(roi[0]), vertical, horizontal


def _bin(first: int, last: int, place: int, count: int, limit: int) -> slice:
    size = np.float32(max(last - first + 1, 1)) / np.float32(count)
    begin, end = int(np.floor(np.float32(place) * size)) + first, int(np.ceil(np.float32(place + 1) * size)) + first
    return slice(min(max(begin, 0), limit), min(max(end, 0), limit))

"""Binary search in sorted rows, running extrema and elements of a rank with their places: algorithms without an
operator of ONNX."""

from __future__ import annotations

import enum
from collections.abc import Sequence

import numpy as np

from daceopt.ir.nodes.builder import Builder
from daceopt.ops.core import algorithm


def search_sorted(
    b: Builder, boundaries: str, values: str, order: str | None, out: str, shared: bool, right: bool
) -> None:
    """Write to ``out`` (int64) where ``values`` [rows, n] would be in ``boundaries`` [rows or 1, m]."""
    rows, count = b.graph.shape(values)
    parameters = [rows, b.graph.shape(boundaries)[1], count, int(shared), int(right)]
    algorithm.call(b, "searchsorted", [boundaries, values, order], [out], parameters)


@algorithm.reference("searchsorted")
def _search_sorted(inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], parameters: Sequence[int]) -> None:
    """Bisection as in the template, so that boundaries out of order give the same."""
    boundaries, values, order = inputs
    rows, extent, count, shared, right = parameters
    out = outputs[0].reshape(rows, count)
    for row in range(rows):
        at = 0 if shared else row
        line = boundaries[at] if order is None else boundaries[at][order[at]]
        for n in range(count):
            out[row, n] = _bisect(line, values[row, n], bool(right), extent)


def _bisect(line: np.ndarray, value: np.generic, right: bool, high: int) -> int:
    low = 0
    while low < high:
        middle = (low + high) // 2
        if line[middle] > value if right else line[middle] >= value:
            high = middle
        else:
            low = middle + 1
    return low


def running_extremum(b: Builder, x: str, best: str, places: str, axis: int, largest: bool) -> None:
    """Write the maximum (or minimum) of the elements so far along ``axis``, and where it is last."""
    parameters = [*algorithm.extents_around(b.graph.shape(x), axis), int(largest)]
    algorithm.call(b, "running_extremum", [x], [best, places], parameters)


@algorithm.reference("running_extremum")
def _running_extremum(inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], parameters: Sequence[int]) -> None:
    x = algorithm.around(inputs[0], parameters)
    best, place = x[:, :1].copy(), np.zeros(x[:, :1].shape, np.int64)
    results = [None if out is None else algorithm.around(out, parameters) for out in outputs]
    for k in range(x.shape[1]):
        value = x[:, k : k + 1]
        reached = value >= best if parameters[3] else value <= best
        is_better = (value != value) | ((best == best) & reached)
        best, place = np.where(is_better, value, best), np.where(is_better, k, place)
        for result, now in zip(results, (best, place)):
            if result is not None:
                result[:, k : k + 1] = now


class Wanted(enum.IntEnum):
    """The element that :func:`ranked_index` looks for; as ``ranked_index.h`` numbers them."""

    RANK = 0  # that of a given rank from below; NaN is the largest
    MEDIAN = 1  # the lower of those in the middle, or the first NaN
    MEDIAN_WITHOUT_NAN = 2  # the same among those that are numbers


def ranked_index(b: Builder, x: str, axis: int, out: str, statistic: Wanted, rank: int = 0) -> None:
    """Write to ``out`` (int64, 1 along ``axis``) where it is: of equal elements, the one that ATen finds."""
    algorithm.call(
        b, "ranked_index", [x], [out], [*algorithm.extents_around(b.graph.shape(x), axis), int(statistic), rank]
    )


@algorithm.reference("ranked_index")
def _ranked_index(inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], parameters: Sequence[int]) -> None:
    """By ATen, of ranks: which of equal elements is found depends on the steps of its selections."""
    import torch

    x, (statistic, rank) = algorithm.around(inputs[0], parameters), parameters[3:]
    if not 0 <= rank < x.shape[1]:
        raise IndexError(f"kthvalue: no element of rank {rank} along an axis of {x.shape[1]} elements")
    if x.size == 0:
        return
    ranks = np.unique(x, return_inverse=True)[1].reshape(x.shape).astype(np.float64)
    rows = torch.from_numpy(np.where(x != x, np.nan, ranks))
    if statistic == Wanted.RANK:
        ranked = torch.kthvalue(rows, rank + 1, 1, keepdim=True)
    else:
        median = torch.median if statistic == Wanted.MEDIAN else torch.nanmedian
        ranked = median(rows, 1, keepdim=True)
    outputs[0][...] = ranked.indices.numpy().reshape(outputs[0].shape)

"""Binary search in sorted rows, and running extrema with their places: algorithms without an operator of ONNX."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from daceopt.ir.builder import Builder
from daceopt.ops.core import algorithm


def search_sorted(
    b: Builder, boundaries: str, values: str, order: str | None, out: str, shared: bool, right: bool
) -> None:
    """Write to ``out`` (int64) where ``values`` [rows, n] would stand in ``boundaries`` [rows or 1, m]."""
    rows, count = b.graph.shape(values)
    parameters = [rows, b.graph.shape(boundaries)[1], count, int(shared), int(right)]
    algorithm.call(b, "searchsorted", [boundaries, values, order], [out], parameters)


@algorithm.reference("searchsorted")
def _search_sorted(inputs: Sequence[Any], outputs: Sequence[np.ndarray], parameters: Sequence[int]) -> None:
    """Bisection as in the template, so that boundaries out of order give the same."""
    boundaries, values, order = inputs
    rows, extent, count, shared, right = parameters
    out = outputs[0].reshape(rows, count)
    for row in range(rows):
        at = 0 if shared else row
        line = boundaries[at] if order is None else boundaries[at][order[at]]
        for n in range(count):
            out[row, n] = _bisected(line, values[row, n], bool(right), extent)


def _bisected(line: np.ndarray, value: Any, right: bool, high: int) -> int:
    low = 0
    while low < high:
        middle = (low + high) // 2
        if line[middle] > value if right else line[middle] >= value:
            high = middle
        else:
            low = middle + 1
    return low


def running_extremum(b: Builder, x: str, best: str, places: str, axis: int, largest: bool) -> None:
    """Write the maximum (or minimum) of the elements so far along ``axis``, and where it stands last."""
    parameters = [*algorithm.extents_around(b.graph.shape(x), axis), int(largest)]
    algorithm.call(b, "running_extremum", [x], [best, places], parameters)


@algorithm.reference("running_extremum")
def _running_extremum(inputs: Sequence[Any], outputs: Sequence[Any], parameters: Sequence[int]) -> None:
    x = algorithm.around(inputs[0], parameters)
    best, place = x[:, :1].copy(), np.zeros(x[:, :1].shape, np.int64)
    results = [None if out is None else algorithm.around(out, parameters) for out in outputs]
    for k in range(x.shape[1]):
        value = x[:, k : k + 1]
        reached = value >= best if parameters[3] else value <= best
        taken = (value != value) | ((best == best) & reached)
        best, place = np.where(taken, value, best), np.where(taken, k, place)
        for result, now in zip(results, (best, place)):
            if result is not None:
                result[:, k : k + 1] = now

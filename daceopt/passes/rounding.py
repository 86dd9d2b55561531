"""How far results are from those of float64, and what of that rounding explains."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from daceopt.ir.graph.graph import Graph

# A step may reorder operations: this many times the unoptimized graph's error plus some ulps is rounding.
_FACTOR = 4.0
_ULPS = 16.0
_DISTURBED = 4  # executions with other roundings, where one alone does not explain an error


def results(graph: Graph) -> list[str]:
    """What ``graph`` computes for others: its outputs, then what it saves for the backward pass."""
    return [*graph.outputs, *graph.saved]


def outputs(graph: Graph, inputs: dict[str, np.ndarray], exact: bool = False) -> list[np.ndarray]:
    """Interpret ``graph``; its results in order, computed in float64 if ``exact``."""
    import daceopt.ops  # noqa: F401  (registers how library nodes and operators are interpreted)
    from daceopt.ir.interpreter.interpret import interpret

    arrays = interpret(graph, inputs, np.float64 if exact else None)
    return [np.asarray(arrays[name]) for name in results(graph)]


def disturbed_errors(
    graph: Graph, inputs: dict[str, np.ndarray], exact: Mapping[str, np.ndarray], sums: float = 0.0
) -> dict[str, float]:
    """The largest finite error of each array of ``exact`` in executions of ``graph`` with other roundings; ``sums``: as
    of :class:`daceopt.ir.interpreter.disturbance.Disturbance`."""
    from daceopt import ops
    from daceopt.ir.interpreter.disturbance import Disturbance
    from daceopt.ir.interpreter.interpret import interpret

    lowered = graph.copy()
    ops.lower_all(lowered)
    runs = [interpret(lowered, inputs, disturbance=Disturbance(seed, sums)) for seed in range(_DISTURBED)]
    errors = {n: [relative_error(np.asarray(run[n]), e) for run in runs] for n, e in exact.items()}
    return {n: max((e for e in errors if np.isfinite(e)), default=0.0) for n, errors in errors.items()}


def relative_error(ours: np.ndarray, exact: np.ndarray) -> float:
    """Largest difference relative to the largest magnitude; infinite where shapes, NaN or infinities differ."""
    if ours.shape != exact.shape:
        return float("inf")
    a, e = ours.astype(np.float64), exact.astype(np.float64)
    finite = np.isfinite(e)
    if not np.array_equal(a[~finite], e[~finite], equal_nan=True) or not np.isfinite(a[finite]).all():
        return float("inf")
    if not finite.any():
        return 0.0
    scale = max(float(np.abs(e[finite]).max()), float(np.finfo(np.float32).tiny))
    return float(np.abs(a[finite] - e[finite]).max()) / scale


def within_rounding(error: float, peer: float, floating: bool = True) -> bool:
    """Is a float32 result's relative ``error`` explained by rounding, given that of another program for the same?"""
    return error <= _FACTOR * peer + (_ULPS * float(np.finfo(np.float32).eps) if floating else 0.0)

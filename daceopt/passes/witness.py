"""Whether a float64 reference can be trusted: operators as ONNX's evaluator computes them, beside their lowerings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from daceopt.passes.rounding import disturbed_errors, outputs, relative_error, results, within_rounding

if TYPE_CHECKING:
    from daceopt.ir.graph.graph import Graph

_APART = 1e-6  # of the largest magnitude: what float64 rounds is far less


def objection(graph: Graph, inputs: dict[str, np.ndarray], exact: Sequence[np.ndarray]) -> str | None:
    """Why ``exact``, the results of ``graph`` in float64, are no reference; None where they can be trusted.

    They cannot where what the operators are lowered to computes something else, in float64 as well, by more than other
    roundings explain.
    """
    from daceopt import ops

    if not graph.operators():
        return None
    lowered = graph.copy()
    ops.lower_all(lowered)
    second = dict(zip(results(graph), outputs(lowered, inputs, exact=True), strict=True))
    apart = {n: relative_error(a, e) for (n, a), e in zip(second.items(), exact, strict=True)}
    suspect = {n: second[n] for n, error in apart.items() if error > _APART}
    if not suspect:
        return None
    roundings = disturbed_errors(graph, inputs, suspect)
    if all(within_rounding(apart[n], roundings[n], second[n].dtype.kind == "f") for n in suspect):
        return None
    node = ops.dissent(graph, inputs, _APART)
    named = "the model" if node is None else f"operator {node.op_type} ({node.source_name or 'unnamed'!r})"
    return (
        f"the float64 reference stands alone: what {named} is lowered to computes something else in float64, "
        f"{max(apart.values()):.1e} apart; one of the two is wrong, so nothing can be compared with the reference"
    )

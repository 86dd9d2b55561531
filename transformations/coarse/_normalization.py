"""What the liftings of normalizations share: the mean over trailing dimensions, the scale and bias after it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from daceopt.ir.graph.operators import trailing
from daceopt.ir.scalar import types
from daceopt.passes.patterns import Match, Op, op, then


def _fits(name: str) -> Callable[..., bool]:
    """Has the array the shape of the normalized dimensions? A bias needs a scale before it."""

    def fits(m: Match) -> bool:
        axes = trailing(m.graph, m.node("variance"))
        return axes is not None and "gamma" in m and m.shape(name) == m.shape("x")[axes[0] :]

    return fits


SCALE = then("Mul", "gamma", when=_fits("gamma"))
BIAS = then("Add", "beta", when=_fits("beta"))


def unknown_shape(m: Match) -> str | None:
    """Why the scale that the operator needs cannot be made."""
    shape = m.shape("x")[(trailing(m.graph, m.node("variance")) or [0])[0] :]
    return None if all(isinstance(d, int) for d in shape) else f"the normalized dimensions {shape} must be known"


def normalization(m: Match, op_type: str) -> Op:
    """The operator; with a scale of ones when the model has none."""
    axis = (trailing(m.graph, m.node("variance")) or [0])[0]
    ones = np.ones([int(d) for d in m.shape("x")[axis:]], types.to_numpy(m.graph.dtype(m["x"])))
    return op(op_type, "x", "gamma" if "gamma" in m else ones, "beta?", axis=axis, epsilon=m["epsilon"])

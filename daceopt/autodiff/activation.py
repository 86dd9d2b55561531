"""The gradient through the activation that a dense node applies last."""

from __future__ import annotations

import math

import sympy

from daceopt.errors import Unsupported
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.scalar import scalar


def before_activation(
    b: Builder, activation: str | None, y: str, g: str, slope: float = 0.0, ceiling: float = math.inf
) -> str:
    """Gradient of the activation's argument, told from its result ``y``; a relu has ``slope`` below 0, and is
    ``ceiling`` at most.

    Raises Unsupported for an activation without a rule, and for a negative slope, which the result does not tell.
    """
    if activation is None:
        return g
    if activation != "relu":
        raise Unsupported(f"activation {activation!r} of a dense node has no gradient; expected None or 'relu'")
    if slope < 0:
        raise Unsupported(f"a relu with slope {slope} has no gradient that its result tells; expected at least 0")

    def rule(v: sympy.Expr, dv: sympy.Expr) -> sympy.Expr:
        slope_of_v = scalar.select(scalar.gt(v, 0), dv, slope * dv)
        return slope_of_v if ceiling == math.inf else scalar.select(scalar.ge(v, ceiling), 0, slope_of_v)

    return str(b.elementwise(rule, y, g, label="relu_grad"))

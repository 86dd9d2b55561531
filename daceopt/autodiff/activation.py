"""The gradient through the activation that a dense node applies last."""

from __future__ import annotations

from daceopt.errors import Unsupported
from daceopt.ir import scalar
from daceopt.ir.builder import Builder


def before_activation(b: Builder, activation: str | None, y: str, g: str) -> str:
    """Gradient of the activation's argument, told from its result ``y``. Raises Unsupported for an activation without a
    rule.
    """
    if activation is None:
        return g
    if activation != "relu":
        raise Unsupported(f"activation {activation!r} of a dense node has no gradient; expected None or 'relu'")
    return str(b.elementwise(lambda v, dv: scalar.select(scalar.gt(v, 0), dv, 0), y, g, label="relu_grad"))

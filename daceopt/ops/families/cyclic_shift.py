"""Elements that move along an axis and come back at its other end, where the axis may be of any length."""

from __future__ import annotations

import sympy

from daceopt.ir.graph.operands import require
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.scalar import scalar
from daceopt.ir.scalar.dims import Dim
from daceopt.ops.core.registry import ANY, Names, Operator, gradient, lowering


@lowering("Roll", domain="daceopt", types=ANY)
def roll(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    """``axis``, ``shift``: element p goes to p + shift."""
    shift_cyclically(b, require(inputs, 0), require(outputs, 0), node.attribute("axis"), node.attribute("shift"))


@gradient("Roll", domain="daceopt")
def roll_gradient(
    b: Builder, node: Operator, inputs: Names, outputs: Names, grads_out: Names, needs_grad: list[bool]
) -> Names:
    """Back again."""
    dy = require(grads_out, 0)
    out = b.graph.add_array("roll_grad", b.graph.shape(dy), b.graph.dtype(dy))
    shift_cyclically(b, dy, out, node.attribute("axis"), -node.attribute("shift"))
    return [out]


def shift_cyclically(b: Builder, x: str, out: str, axis: int, shift: Dim) -> None:
    """``out[p + shift] = x[p]`` along ``axis``, modulo its extent; ``shift`` may be an expression."""
    shape = b.graph.shape(x)

    def element(i: tuple[sympy.Symbol, ...], x: sympy.Expr) -> sympy.Expr:
        return scalar.load(x, *i[:axis], scalar.pymod(i[axis] - shift, shape[axis]), *i[axis + 1 :])

    whole = (None,) * len(shape)
    b.map(shape, {"x": (x, lambda *i: whole)}, {"out": (out, lambda *i: i)}, element, label="roll")

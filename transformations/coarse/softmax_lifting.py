"""Softmax from exponential, sum and quotient."""

from __future__ import annotations

from dataclasses import dataclass

from daceopt.ir.graph.operators import axes_of
from daceopt.passes.patterns import Match, Op, PatternRule, either, op


@dataclass(frozen=True)
class SoftmaxLifting(PatternRule):
    """One Softmax, which is numerically stable, with or without the maximum subtracted before.

    before:  e = Exp(x - ReduceMax(x, k)); y = e / ReduceSum(e, k)
    after:   y = Softmax(x; axis=k)
    """

    thing = "the softmax"
    pattern = op(
        "Div",
        op("Exp", either(op("Sub", "x", op("ReduceMax", "x", ...).named("maximum").shared()).shared(), "x"))
        .named("numerator")
        .called("the exponential"),
        op("ReduceSum", "numerator", ..., keepdims=1).named("sum").shared(),
    )

    def why_not(self, m: Match) -> str | None:
        axes = axes_of(m.graph, m.node("sum"))
        if axes is None or len(axes) != 1:
            return f"the sum is over axes {axes}, expected one constant axis that is kept"
        maximum = m.captures.get("maximum")  # any other shift belongs to x: softmax ignores it
        if maximum is not None and (axes_of(m.graph, maximum) != axes or maximum.attribute("keepdims", 1) != 1):
            return f"the maximum is over axes {axes_of(m.graph, maximum)}, the sum over {axes}"
        return None

    def replace(self, m: Match) -> Op:
        axes = axes_of(m.graph, m.node("sum"))
        assert axes is not None, "decided by why_not"
        return op("Softmax", "x", axis=axes[0])

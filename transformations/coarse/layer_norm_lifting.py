"""Layer normalization from the primitives that exporters emit."""

from __future__ import annotations

from dataclasses import dataclass

from daceopt.ir.graph.operators import trailing
from daceopt.passes.patterns import Match, Op, PatternRule, op, over_root, scalar, square
from daceopt.transformations.coarse._normalization import BIAS, SCALE, normalization, unknown_shape


@dataclass(frozen=True)
class LayerNormLifting(PatternRule):
    """One LayerNormalization instead of mean, difference, variance, root and quotient; scale and bias join it.

    before:  d = x - ReduceMean(x); y = d / Sqrt(ReduceMean(d * d) + eps) * gamma + beta
    after:   y = LayerNormalization(x, gamma, beta; epsilon=eps)
    """

    thing = "the normalization"
    pattern = over_root(
        op("Sub", "x", op("ReduceMean", "x", ...).named("mean").called("its mean")).named("difference"),
        op("Add", op("ReduceMean", square("difference"), ...).named("variance"), scalar("epsilon")),
    )
    after = (SCALE, BIAS)

    def why_not(self, m: Match) -> str | None:
        axes = trailing(m.graph, m.node("mean"))
        if axes is None or axes != trailing(m.graph, m.node("variance")):
            return "mean and variance must be over the same trailing dimensions, which are kept"
        return unknown_shape(m)

    def replace(self, m: Match) -> Op:
        return normalization(m, "LayerNormalization")

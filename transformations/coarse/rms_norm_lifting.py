"""Root-mean-square normalization from the primitives that exporters emit."""

from __future__ import annotations

from dataclasses import dataclass

from daceopt.ir.graph.operators import operator_writing, trailing
from daceopt.passes.patterns import Match, Op, PatternRule, op, over_root, scalar, square
from daceopt.transformations.coarse._normalization import SCALE, normalization, unknown_shape


@dataclass(frozen=True)
class RmsNormLifting(PatternRule):
    """One RMSNormalization instead of square, mean, root and quotient; the scale joins it.

    before:  y = x * Reciprocal(Sqrt(ReduceMean(x * x) + eps)) * gamma
    after:   y = RMSNormalization(x, gamma; epsilon=eps)
    """

    thing = "the normalization"
    pattern = over_root("x", op("Add", op("ReduceMean", square("of"), ...).named("variance"), scalar("epsilon")))
    after = (SCALE,)

    def why_not(self, m: Match) -> str | None:
        if m["of"] != m["x"]:
            return f"the mean square is of {m['of']}, but {m['x']} is divided by its root"
        if trailing(m.graph, m.node("variance")) is None:
            return "the mean must be over trailing dimensions, which are kept"
        if _is_difference_from_mean(m):
            return f"{m['x']} is a difference from a mean: that is layer normalization"
        return unknown_shape(m)

    def replace(self, m: Match) -> Op:
        return normalization(m, "RMSNormalization")


def _is_difference_from_mean(m: Match) -> bool:
    """That is layer normalization, which has a lifting of its own."""
    node = operator_writing(m.graph, m["x"], "Sub")
    mean = operator_writing(m.graph, m.graph.inputs_of(node)[1], "ReduceMean") if node is not None else None
    return mean is not None and m.graph.inputs_of(mean)[0] == m.graph.inputs_of(node)[0]

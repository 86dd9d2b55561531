"""Cross entropy from the two operators that front ends make of it."""

from __future__ import annotations

from dataclasses import dataclass

from daceopt.passes.patterns import Match, Op, PatternRule, either, op


@dataclass(frozen=True)
class CrossEntropyLifting(PatternRule):
    """One loss, which reads the scores and needs no array of the logarithms of all probabilities.

    before:  y = NegativeLogLikelihoodLoss(LogSoftmax(x; axis=1), labels, weights)
    after:   y = SoftmaxCrossEntropyLoss(x, labels, weights)
    """

    thing = "the loss"
    pattern = op(
        "NegativeLogLikelihoodLoss", op("LogSoftmax", "x").named("logarithms"), "labels", either(None, "weights")
    ).named("loss")

    def why_not(self, m: Match) -> str | None:
        node, rank = m.node("logarithms"), len(m.graph.shape(m["x"]))
        axis = int(node.attribute("axis", -1)) % rank
        if axis != 1:
            return f"the probabilities are over axis {axis}, labels name elements of axis 1"
        if node.since_version < 13 and rank > 2:
            return "the probabilities are over all axes from 1 on"
        return None

    def replace(self, m: Match) -> Op:
        return op("SoftmaxCrossEntropyLoss", "x", "labels", m.get("weights"), **m.node("loss").attributes)

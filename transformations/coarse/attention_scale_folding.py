"""One multiplication by a constant in attention instead of several on the queries, the keys and the scores."""

from __future__ import annotations

from dataclasses import dataclass

from daceopt.passes.patterns import HERE, Match, Op, PatternRule, either, op, scaled, then

_Q, _K = scaled("q", "q_scale").shared(), scaled("k", "k_scale").shared()


@dataclass(frozen=True)
class AttentionScaleFolding(PatternRule):
    """Gather the constant factors of a product that feeds a softmax into one multiplication of the scores.

    before:  p = Softmax(MatMul(q * sqrt(s), k * sqrt(s)) + mask)
    after:   p = Softmax(MatMul(q, k) * s + mask)
    """

    pattern = either(op("MatMul", _Q, _K), op("MatMul", _Q, "k"), op("MatMul", "q", _K))
    after = (
        then(scaled(HERE, "scale")),
        then("Add|Where", ..., replaced=False),
        then("Softmax", ..., replaced=False, required="the scaled product does not feed a Softmax"),
    )

    def replace(self, m: Match) -> Op:
        scale = m.get("q_scale", 1.0) * m.get("k_scale", 1.0) * m.get("scale", 1.0)
        return op("Mul", op("MatMul", "q", "k"), scale)

"""SiLU from the primitives that exporters emit."""

from __future__ import annotations

from dataclasses import dataclass

from daceopt.passes.patterns import Match, Op, PatternRule, either, op, scaled


@dataclass(frozen=True)
class SiluLifting(PatternRule):
    """One Swish, which reads ``x`` once; ``alpha`` is 1 for SiLU.

    before:  y = x * Sigmoid(x * a)      or  x / (1 + Exp(-x))
    after:   y = Swish(x; alpha=a)       or  Swish(x; alpha=1)

    Hendrycks and Gimpel, 2016; Ramachandran et al., 2017.
    """

    thing = "the SiLU"
    pattern = either(
        op("Mul", "x", op("Sigmoid", "x")),
        op("Mul", "x", op("Sigmoid", scaled("x", "alpha"))),
        op("Div", "x", op("Add", op("Exp", op("Neg", "x")), 1.0)),
    )

    def replace(self, m: Match) -> Op:
        return op("Swish", "x", alpha=float(m.get("alpha", 1.0)))

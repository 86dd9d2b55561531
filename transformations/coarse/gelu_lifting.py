"""GELU from the primitives that exporters emit, in its exact and its tanh form."""

from __future__ import annotations

from dataclasses import dataclass
from math import pi, sqrt

from daceopt.passes.patterns import Match, Op, PatternRule, either, op, polynomial, product

_INNER = sqrt(2 / pi)


@dataclass(frozen=True)
class GeluLifting(PatternRule):
    """One Gelu, whatever the order of the operands and wherever the one half is.

    before:  y = x * 0.5 * (1 + Erf(x / sqrt(2)))      or  0.5 * x * (1 + Tanh(sqrt(2 / pi) * (x + 0.044715 * x ** 3)))
    after:   y = Gelu(x; approximate=none)             or  Gelu(x; approximate=tanh)
    """

    thing = "the GELU"
    pattern = either(
        product(0.5, "x", op("Add", 1.0, op("Erf", polynomial("x", {1: sqrt(0.5)})))),
        product(0.5, "x", op("Add", 1.0, op("Tanh", polynomial("x", {1: _INNER, 3: _INNER * 0.044715})).named("tanh"))),
    )

    def replace(self, m: Match) -> Op:
        return op("Gelu", "x", approximate="tanh" if "tanh" in m else "none")

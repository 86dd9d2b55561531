"""Mish from the primitives that exporters emit."""

from __future__ import annotations

from dataclasses import dataclass

from daceopt.passes.patterns import PatternRule, either, op

_SOFTPLUS = either(op("Softplus", "x"), op("Log", op("Add", op("Exp", "x"), 1.0)))


@dataclass(frozen=True)
class MishLifting(PatternRule):
    """One Mish, which reads ``x`` once and whose softplus cannot overflow.

    before:  y = x * Tanh(Softplus(x))      or  x * Tanh(Log(Exp(x) + 1))
    after:   y = Mish(x)

    Misra, 2020.
    """

    thing = "the Mish"
    pattern = op("Mul", "x", op("Tanh", _SOFTPLUS))
    replacement = op("Mish", "x")

"""Operators about gradients: what stops them, and what brings its own."""

from __future__ import annotations

from daceopt.capture.torch.table import translates
from daceopt.capture.torch.translation import Translation


@translates("detach")
def detach(t: Translation, self: str) -> str:
    return t.operator("StopGradient", self, domain="daceopt")


@translates("daceopt::stop_gradient")
def stop_gradient(t: Translation, value: str) -> str:
    return detach(t, value)


@translates("daceopt::with_gradient", derivative="aten")
def with_gradient(t: Translation, results: list[str], operands: list[str], saved: list[str], number: int) -> list[str]:
    """The results as they are; ``derivative.py`` has the rule."""
    return results

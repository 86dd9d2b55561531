"""What failed in a session: the step, the site and the cause, in one sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from daceopt.errors import DaceoptError

if TYPE_CHECKING:
    from daceopt.passes.transform import Transformation


def explained(error: Exception, step: Transformation | None) -> str:
    """``step relu-of-relu, site Relu + Relu: ...``: what ``error`` says, and what it leaves out of these."""
    said = str(error) if isinstance(error, DaceoptError) else f"{type(error).__name__}: {error}"
    site = getattr(error, "site", "")
    parts = ("step", str(step) if step is not None else ""), ("site", site)
    before = ", ".join(f"{kind} {text}" for kind, text in parts if text and text not in said)
    return f"{before}: {said}" if before else said

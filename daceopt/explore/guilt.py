"""What failed in a session: the step, the site and the cause, in one sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from daceopt.errors import DaceoptError

if TYPE_CHECKING:
    from daceopt.ir.program import Program
    from daceopt.passes.transform import Transformation


def explained(error: Exception, steps: Sequence[Transformation], program: Program) -> str:
    """``step relu-of-relu, site Relu + Relu: ...``: what ``error`` says, and what it leaves out of these."""
    said = str(error) if isinstance(error, DaceoptError) else f"{type(error).__name__}: {error}"
    named = next((str(s) for s in steps if str(s) in said), "")
    step = "" if named else f"step {steps[0]}" if len(steps) == 1 else "a step"
    site = getattr(error, "site", "")
    where = f"site {site}" if site and site not in said else ""
    before = ", ".join(filter(None, (step, where)))
    return f"{before}: {said}" if before else said

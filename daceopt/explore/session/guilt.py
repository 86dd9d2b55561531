"""What failed in a session: the step, the site and the cause, in one sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from daceopt.errors import DaceoptError, VerificationError
from daceopt.passes.bisect import invalid_site
from daceopt.passes.transform import Transformation

if TYPE_CHECKING:
    from daceopt.ir.control.program import Program


def explain(error: Exception, step: Transformation | None, program: Program | None = None) -> str:
    """``step relu-of-relu, site Relu + Relu: ...``: what ``error`` says, and what it leaves out of these.

    ``program``: as it was right before the step, to find the site at which that left it invalid.
    """
    message = str(error) if isinstance(error, DaceoptError) else f"{type(error).__name__}: {error}"
    site = getattr(error, "site", "")
    if not site and isinstance(error, VerificationError) and step is not None and program is not None:
        site = _invalid(step, program)
    parts = ("step", str(step) if step is not None else ""), ("site", site)
    before = ", ".join(f"{kind} {text}" for kind, text in parts if text and text not in message)
    return f"{before}: {message}" if before else message


def _invalid(step: Transformation, program: Program) -> str:
    """The first site after which one of the graphs is invalid; nothing where none is, or the step raises meanwhile."""
    if type(step).run_program is not Transformation.run_program:
        return ""
    invalid = (invalid_site(step, graph) for name, graph in program.by_direction() if step.runs_on(name))
    try:
        return next(filter(None, invalid), "")
    except Exception:
        return ""

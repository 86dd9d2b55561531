"""Statements that only convert between float32 and the narrow types that products multiply."""

from __future__ import annotations

import dace

from daceopt.ir import scalar, types
from daceopt.ir.kernel import Stage


def only_converts(stage: Stage) -> bool:
    """Whether the value written is the one value read, rounded to bfloat16 or not."""
    known = {str(c) for c in stage.reads}
    for assignment in stage.assignments:
        value = assignment.expr
        while scalar.cast_target(value) in (dace.float32, types.BFLOAT16):
            value = value.args[0]
        if str(value) not in known or assignment.dtype != dace.float32:
            return False
        known.add(str(assignment.symbol))
    return len(stage.reads) == 1

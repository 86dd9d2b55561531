"""Conversions that a second one makes unnecessary."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from daceopt.ir.scalar import types
from daceopt.ir.scalar.types import DType
from daceopt.passes.patterns import Match, Op, PatternRule, op


@dataclass(frozen=True)
class CastRemoval(PatternRule):
    """Convert once where the type in between holds every value of the first.

    before:  h: float32 = Cast(x: int8); y: float64 = Cast(h)      w: float32 = Cast(Cast(z: float32, to=float64))
    after:   y: float64 = Cast(x)                                  w = z

    What rounds, wraps or saturates on the way stays. float64 to float32 and back is no conversion to remove.
    """

    thing = "the conversions"
    pattern = op("Cast", op("Cast", "x").named("between").shared()).named("last")

    def why_not(self, m: Match) -> str | None:
        graph = m.graph
        first, second, third = (graph.dtype(n) for n in (m["x"], m["between"], m.result))
        if not _holds(first, second):
            return f"{types.name_of(second)} in between does not hold every {types.name_of(first)}"
        if types.is_float(second) and types.is_integer(third) and not _holds(first, third):
            return f"a {types.name_of(second)} that {types.name_of(third)} cannot hold converts as the machine does"
        if first == third and graph.is_kept(m.result):
            return f"{m.result} must be an array of its own"
        return None

    def replace(self, m: Match) -> Op | str:
        dtype = m.graph.dtype(m.result)
        return "x" if m.graph.dtype(m["x"]) == dtype else op("Cast", "x", to=types.to_onnx(dtype), **modes(m, "last"))


def modes(m: Match, name: str) -> dict[str, Any]:
    """How the Cast or CastLike called ``name`` rounds and overflows: attributes of a Cast in its place."""
    return {k: v for k, v in m.node(name).attributes.items() if k in ("saturate", "round_mode")}


def _holds(narrow: DType, wide: DType) -> bool:
    """Is every value of the one type a value of the other?"""
    if narrow == wide or types.is_bool(narrow):
        return True
    if types.is_bool(wide) or types.is_narrow(wide):
        return False
    if types.is_narrow(narrow):
        return types.is_float(narrow) and types.is_float(wide)
    if types.is_integer(narrow) and types.is_float(wide):
        return np.iinfo(types.to_numpy(narrow)).bits <= np.finfo(types.to_numpy(wide)).nmant + 1
    return bool(np.can_cast(types.to_numpy(narrow), types.to_numpy(wide), "safe"))

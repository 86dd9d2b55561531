"""A sum over arrays that were put side by side only for it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import numpy as np

from daceopt.ir import types
from daceopt.ir.operators import axes_of
from daceopt.passes.patterns import Match, Op, PatternRule, op


@dataclass(frozen=True)
class StackedSumRemoval(PatternRule):
    """Add arrays one after the other instead of putting them side by side and adding along that axis.

    before:  y = ReduceSum(Concat(Unsqueeze(a, 0), Unsqueeze(b, 0), Unsqueeze(c, 0); axis=0), 0)
    after:   y = (a + b) + c

    All of them no longer have to be there at once: each addition becomes a part of what computes its operand. Skip
    connections and ensembles are written so.
    """

    thing = "the sum"
    pattern = op("ReduceSum", op("Concat", ...).named("stack"), ...).named("sum")

    def why_not(self, m: Match) -> str | None:
        graph, stack = m.graph, m.node("stack")
        parts = graph.inputs_of(stack)
        shapes = [graph.shape(n) for n in parts if n is not None]
        axis = int(stack.attribute("axis")) % len(shapes[0])
        if axes_of(graph, m.node("sum")) != [axis]:
            return f"it is not along axis {axis} alone, along which arrays stand side by side"
        if any(shape[axis] != 1 for shape in shapes):
            return f"arrays of shapes {shapes} are more than one element each along axis {axis}"
        return None if types.is_float(graph.dtype(m.result)) else f"elements of {graph.dtype(m.result)}"

    def replace(self, m: Match) -> Op:
        stack, axes = m.node("stack"), np.asarray(axes_of(m.graph, m.node("sum")), np.int64)
        keeps = bool(m.node("sum").attribute("keepdims", 1))
        names = [n for n in m.graph.inputs_of(stack) if n is not None]
        parts = [n if keeps else op("Squeeze", n, axes) for n in names]
        found = reduce(lambda a, b: op("Add", a, b), parts)
        return found if isinstance(found, Op) else op("Identity", found)

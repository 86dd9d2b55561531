"""Make one loop of several that walk memory as one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import sympy

from daceopt.ir.access.references import Reference, StatementInstance
from daceopt.ir.edits.loops import KernelLoops, Nest
from daceopt.ir.edits.schedule_edits import merged_loop
from daceopt.ir.scalar.digits import in_terms_of
from daceopt.ir.scalar.dims import Dim
from daceopt.ir.schedule import schedule
from daceopt.ir.schedule.schedule import Loop, Param, Tree
from daceopt.transformations.hardware._scheduling import KernelStep


@dataclass(frozen=True)
class LoopMerging(KernelStep):
    """Merge two loops where every access steps through both as through one.

    before:  for i < m: for j < n: y[i, j] = f(x[i, j])      (row-major)
    after:   for j < m * n: y[j] = f(x[j])

    A long loop vectorises better than a short one, and is shared evenly by threads. Not where the statement computes
    with one of the parameters, or reads an element that depends on it in another way.
    """

    def edit(self, form: KernelLoops) -> Tree | None:
        mapping: dict[sympy.Symbol, sympy.Expr] = {}
        bodies = list(form.bodies.values())
        shared = _merge(form.shared, bodies, mapping)
        nests = []
        for nest in form.nests:
            inner = dict(mapping)
            loops = _merge(nest.loops, form.bodies_of(nest), inner)
            nests.append(Nest(loops, schedule.substitute(nest.body, inner)))
        if len(shared) == len(form.shared) and all(len(a.loops) == len(b.loops) for a, b in zip(nests, form.nests)):
            return None
        return form.with_nests(nests, shared)


def _merge(
    loops: Sequence[Loop], bodies: Sequence[StatementInstance], mapping: dict[sympy.Symbol, sympy.Expr]
) -> tuple[Loop, ...]:
    """The loops that are left; ``mapping`` gets what stands for the parameters of the others."""
    remaining = {loop.param: loop for loop in loops}
    references = [r for body in bodies for r in body.references()]
    steps = [dict(r.steps) for r in references]
    fixed = _fixed_parameters(bodies, references)
    while pair := _mergeable(steps, [loop for p, loop in remaining.items() if p not in fixed]):
        first, second = pair
        p, q = first.param, second.param
        del remaining[p]
        remaining[q], both = merged_loop(first, second)
        digits = {s: in_terms_of(e, both) for s, e in mapping.items()}
        mapping.update(both | digits)
        for step in steps:
            step.pop(p, None)
    return tuple(remaining.values())


def _fixed_parameters(bodies: Sequence[StatementInstance], references: Sequence[Reference]) -> set[Param]:
    """Parameters that are more than steps through memory."""
    used = {s for body in bodies for a in body.assignments for s in a.free_symbols}
    return used | {s for r in references for s in getattr(r.rest, "free_symbols", ())}


def _mergeable(steps: Sequence[dict[Param, Dim]], loops: Sequence[Loop]) -> tuple[Loop, Loop] | None:
    pairs = ((a, b) for a in loops for b in loops if a is not b and a.rest is None and b.rest is None)
    return next((pair for pair in pairs if all(_steps_as_one(s, pair[0].param, pair[1]) for s in steps)), None)


def _steps_as_one(steps: dict[Param, Dim], p: Param, second: Loop) -> bool:
    outer, inner = steps.get(p), steps.get(second.param)
    if outer is None or inner is None:
        return outer is inner
    return bool(sympy.sympify(outer - inner * second.extent).expand() == 0)

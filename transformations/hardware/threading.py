"""Share the outermost loops of a kernel among threads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import sympy

from daceopt.cost.limits import limits
from daceopt.ir.graph import Dim, dim
from daceopt.ir.schedule import Loop
from daceopt.transformations.hardware._scheduling import (
    Form,
    Nest,
    Scheduling,
    at_least,
    chosen,
    cost,
    count,
    reduced_params,
)


@dataclass(frozen=True)
class Threading(Scheduling):
    """Run the outermost loops in parallel, as many as it takes for ``enough`` iterations.

    before:  for i < 12: for j < 64: for k < 512: ...
    after:   parallel for i < 12: parallel for j < 64: for k < 512: ...

    A loop over which all is reduced is shared only where fewer than ``few`` iterations stand outside of it: each thread
    then has accumulators of its own. ``work``: weighted iterations below which starting threads costs more than it
    saves. What is None says the machine (``cost/limits.py``).
    """

    work: int | None = None
    enough: int | None = None
    few: int | None = None

    def decide(self, form: Form) -> Form | None:
        loops = form.shared if form.single is None else form.single.loops
        work, least = _work(form), chosen(self.work, limits().worthwhile)
        if not loops or any(loop.kind.startswith("parallel") for loop in loops) or not at_least(work, least):
            return None
        when = None if isinstance(work, int) else sympy.Ge(work, least, evaluate=False)
        if form.single is None:
            return replace(form, shared=self._parallel(loops, len(loops), when))
        return self._of_single(form, form.single, when)

    def _of_single(self, form: Form, nest: Nest, when: Any) -> Form | None:
        reduced = reduced_params(form, nest)
        *outer, vector = nest.loops
        if not outer and not reduced and vector.kind == "vector":
            return form.with_loops([replace(vector, kind="parallel vector", when=when)])
        lead = next((k for k, loop in enumerate(outer) if loop.param in reduced), len(outer))
        lead = min(lead, next((k for k, loop in enumerate(outer) if loop.rest is not None), len(outer)))
        sums = lead < len(outer) and outer[lead].param in reduced and (vector.param in reduced or not lead)
        if sums and not at_least(count(outer[:lead]), chosen(self.few, limits().few)):
            lead += at_least(outer[lead].extent, 2)
        return form.with_loops([*self._parallel(outer, lead, when), vector]) if lead else None

    def _parallel(self, loops: Sequence[Loop], lead: int, when: Any) -> tuple[Loop, ...]:
        """The first ``lead`` loops in parallel, or fewer where these are enough."""
        total, used, enough = 1, 0, chosen(self.enough, limits().enough)
        for loop in loops[:lead]:
            if total >= enough:
                break
            total *= loop.extent if isinstance(loop.extent, int) else 1
            used += 1
        return (*(replace(loop, kind="parallel", when=when) for loop in loops[:used]), *loops[used:])


def _work(form: Form) -> Dim:
    """Weighted iterations of the whole kernel."""
    stages, extents = form.kernel.stages, form.kernel.extents
    shared: Dim = count(form.shared)
    outer = set(form.kernel.outer) if form.single is None else set()
    inner = sum(cost(s.assignments) * prod(extents[p] for p in s.params if p not in outer) for s in stages)
    return dim(shared * inner)

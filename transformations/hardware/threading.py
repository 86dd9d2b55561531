"""Share the outermost loops of a kernel among threads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

import sympy

from daceopt.cost.limits import limits
from daceopt.ir.edits.loops import KernelLoops, Nest
from daceopt.ir.scalar.dims import Dim, dim
from daceopt.ir.schedule import schedule
from daceopt.ir.schedule.schedule import Loop, Tree
from daceopt.transformations.hardware._scheduling import KernelStep, at_least, chosen, cost, count, reduced_params


@dataclass(frozen=True)
class Threading(KernelStep):
    """Run the outermost loops in parallel, as many as it takes for ``enough`` iterations.

    before:  for i < 12: for j < 64: for k < 512: ...
    after:   parallel for i < 12: parallel for j < 64: for k < 512: ...

    A loop over which all is reduced is shared only where few iterations stand outside of it: each thread then has
    accumulators of its own. ``work``: weighted iterations below which starting threads costs more than it saves. What
    is None says the machine (``cost/limits.py``).
    """

    work: int | None = None
    enough: int | None = None

    def edit(self, form: KernelLoops) -> Tree | None:
        if form.kernel.is_tiled:
            return self._of_tiles(form)
        common = form.common
        if common is not None and common.loops and common.loops[-1].kind == "vector":
            nest = self._of_nest(form, common)
            return None if nest is None else form.with_nests([nest], ())
        if form.shared or form.locals:
            return self._of_shared(form)
        nests = [self._of_nest(form, nest) for nest in form.nests]
        return None if not any(nests) else form.with_nests(new or old for new, old in zip(nests, form.nests))

    def _of_tiles(self, form: KernelLoops) -> Tree | None:
        """The loops around all tiles are shared by threads."""
        kernel = form.kernel
        band, body = schedule.chain(form.tree)
        shared = list(takewhile(lambda loop: loop.param in kernel.outer, band))
        work = sum(cost(s.assignments) * kernel.most(dict.fromkeys((*kernel.outer, *s.params))) for s in kernel.stages)
        when = self._when(shared, dim(work))
        if when is None:
            return None
        return schedule.nest_loops((*self._parallel(shared, len(shared), *when), *band[len(shared) :]), body)

    def _of_shared(self, form: KernelLoops) -> Tree | None:
        """The loops around all nests are shared by threads."""
        when = self._when(form.shared, _work(form, form.nests))
        return None if when is None else form.with_shared(self._parallel(form.shared, len(form.shared), *when), {})

    def _when(self, loops: Sequence[Loop], work: Dim) -> tuple[Any] | None:
        """The condition on sizes (None: always) under which the work is enough for threads; None where it never is."""
        least = chosen(self.work, limits().worthwhile)
        if not loops or any(loop.kind.startswith("parallel") for loop in loops) or not at_least(work, least):
            return None
        return (None if isinstance(work, int) else sympy.Ge(work, least, evaluate=False),)

    def _of_nest(self, form: KernelLoops, nest: Nest) -> Nest | None:
        """A nest beside others, or alone."""
        condition = self._when(nest.loops, _work(form, [nest]))
        if condition is None:
            return None
        (when,), reduced = condition, reduced_params(form, nest)
        *outer, vector = nest.loops
        if not outer and not reduced and vector.kind == "vector":
            return replace(nest, loops=(replace(vector, kind="parallel vector", when=when),))
        band = list(takewhile(lambda loop: loop.param not in reduced and loop.rest is None, outer))
        lead, following = len(band), outer[len(band) : len(band) + 1]
        sums = any(loop.param in reduced for loop in following) and (vector.param in reduced or not band)
        if sums and not at_least(count(band), limits().few):
            lead += at_least(following[0].extent, 2)
        return replace(nest, loops=(*self._parallel(outer, lead, when), vector)) if lead else None

    def _parallel(self, loops: Sequence[Loop], lead: int, when: sympy.Basic | None) -> tuple[Loop, ...]:
        """The first ``lead`` loops in parallel, or fewer where these are enough."""
        total, used, enough = 1, 0, chosen(self.enough, limits().enough)
        for loop in loops[:lead]:
            if total >= enough:
                break
            total *= loop.extent if isinstance(loop.extent, int) else 1
            used += 1
        return (*(replace(loop, kind="parallel", when=when) for loop in loops[:used]), *loops[used:])


def _work(form: KernelLoops, nests: Iterable[Nest]) -> Dim:
    """Weighted iterations of these nests, in all of the shared loops."""
    inner = sum(
        sum(cost(form.kernel.stages[k].assignments) for k in nest.statements()) * count(nest.loops) for nest in nests
    )
    return dim(count(form.shared) * inner)

"""Let blocks run what needs no other block."""

from __future__ import annotations

from dataclasses import dataclass, replace

from daceopt.ir.edits.loops import KernelLoops
from daceopt.ir.schedule import schedule
from daceopt.ir.schedule.schedule import Tree
from daceopt.transformations.hardware._scheduling import KernelStep, reduced_params


@dataclass(frozen=True)
class GridMapping(KernelStep):
    """Run the serial loops that nothing is reduced over as the grid.

    before:  for i < m: for j_block < 8: block for j < 256: y[i, j + 256*j_block] = ...
    after:   grid for i < m: grid for j_block < 8: block for j < 256: y[i, j + 256*j_block] = ...
    """

    def edit(self, form: KernelLoops) -> Tree | None:
        kinds = {loop.kind for loop in schedule.loops(form.tree)}
        if "grid" in kinds or not kinds & {"block", "warp"}:
            return None
        nest = form.single
        if nest is None:
            shared = [replace(n, kind="grid") if n.kind == "serial" else n for n in form.shared]
            return None if tuple(shared) == form.shared else form.with_shared(shared, {})
        reduced = reduced_params(form, nest)
        free = [n for n in nest.loops if n.kind == "serial" and n.param not in reduced]
        others = [n for n in nest.loops if not any(n is f for f in free)]
        return form.with_loops([*(replace(n, kind="grid") for n in free), *others]) if free else None

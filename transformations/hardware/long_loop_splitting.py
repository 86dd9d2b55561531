"""Cut a long vector loop into blocks where the loops around it are too few for threads to share."""

from __future__ import annotations

from dataclasses import dataclass

from daceopt.cost.limits import limits
from daceopt.ir.edits.loops import KernelLoops
from daceopt.ir.edits.schedule_edits import split_loop
from daceopt.ir.schedule.schedule import Tree
from daceopt.transformations.hardware._scheduling import KernelStep, at_least, chosen, count, reduced_params


@dataclass(frozen=True)
class LongLoopSplitting(KernelStep):
    """Split the vector loop into blocks that threads can share.

    before:  vector for j < 1000000: s += x[j]
    after:   for j_block < 245: vector for j < 4096: s += x[4096 * j_block + j]

    Where enough iterations are around it, nothing is gained. A block of ``size`` elements (None: what the machine says,
    ``cost/limits.py``) is long beside what its start costs, and short enough for a good balance.
    """

    size: int | None = None

    def edit(self, form: KernelLoops) -> Tree | None:
        nest = form.single
        if nest is None or not nest.loops or nest.loops[-1].kind != "vector":
            return None
        size, few = chosen(self.size, limits().block), limits().few
        vector = nest.loops[-1]
        reduced = reduced_params(form, nest)
        flat = len(nest.loops) == 1 and not reduced
        if flat or not at_least(vector.extent, 2 * size) or (reduced and vector.param not in reduced):
            return None
        if any(at_least(loop.extent, few) for loop in nest.loops[:-1]) and reduced:
            return None  # a reduced loop is long enough to be shared
        if at_least(count(nest.loops[:-1]), few):
            return None
        outer, inner, mapping = split_loop(vector, size)
        parallel = [loop for loop in nest.loops[:-1] if loop.param not in reduced]
        reduced_loops = [loop for loop in nest.loops[:-1] if loop.param in reduced]
        return form.with_loops([*parallel, outer, *reduced_loops, inner], mapping)

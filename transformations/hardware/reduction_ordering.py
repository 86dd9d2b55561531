"""Order the loops of a reduction so that its accumulators are few, and its iterations enough to share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from daceopt.cost.limits import limits
from daceopt.ir.edits.loops import KernelLoops, Nest
from daceopt.ir.edits.schedule_edits import split_loop
from daceopt.ir.schedule.schedule import Loop, Tree
from daceopt.transformations.hardware._scheduling import KernelStep, at_least, chosen, count, reduced_params

_LANES = 16  # columns whose sums stay in registers


@dataclass(frozen=True)
class ReductionOrdering(KernelStep):
    """Loops that a reduction keeps go outside of those that it reduces over, as far as the vector loop allows.

    before:  for i < m: vector for j < n: s[j] += x[i, j]
    after:   for j_block: for i < m: vector for j < 512: s[512 * j_block + j] += x[i, j]      (many columns)

    Rows (the vector loop is reduced) collect in a scalar. Columns collect in an array: of ``columns`` elements at a
    time (None: what the machine says, ``cost/limits.py``) where accumulators of float64 for all of them would more than
    fill the first-level cache; of all of them, by the longest reduced loop, where there are fewer. Of columns that stay
    in registers, such as those of a block of channels, one iteration for each core outside of the reduction is enough
    to share.
    """

    columns: int | None = None

    def edit(self, form: KernelLoops) -> Tree | None:
        nest = form.single
        reduced = set() if nest is None else reduced_params(form, nest)
        if nest is None or not reduced or nest.loops[-1].kind != "vector":
            return None
        parallel = [loop for loop in nest.loops[:-1] if loop.param not in reduced]
        reduced_loops = [loop for loop in nest.loops[:-1] if loop.param in reduced]
        if nest.loops[-1].param in reduced:
            return form.with_loops([*parallel, *self._longest_first(parallel, reduced_loops), nest.loops[-1]])
        return self._columns(form, nest, parallel, reduced_loops)

    def _longest_first(self, parallel: Sequence[Loop], reduced_loops: Sequence[Loop]) -> Sequence[Loop]:
        """With few rows, threads share a reduced loop: the first that is long enough."""
        few = limits().few
        wide = next((loop for loop in reduced_loops if at_least(loop.extent, few)), None)
        if wide is None or at_least(count(parallel), few):
            return reduced_loops
        return [wide, *(loop for loop in reduced_loops if loop is not wide)]

    def _columns(self, form: KernelLoops, nest: Nest, parallel: Sequence[Loop], reduced_loops: Sequence[Loop]) -> Tree:
        vector = nest.loops[-1]
        few = limits().few if at_least(vector.extent, _LANES + 1) else limits().cores
        many = at_least(count(parallel), few) if parallel else False
        if at_least(vector.extent if many else count([*parallel, vector]), limits().accumulators + 1):
            outer, inner, mapping = split_loop(vector, chosen(self.columns, limits().columns))
            return form.with_loops([*parallel, outer, *reduced_loops, inner], mapping)
        if many:
            return form.with_loops([*parallel, *reduced_loops, vector])
        rows = max(reduced_loops, key=lambda loop: loop.extent if isinstance(loop.extent, int) else 1 << 40)
        return form.with_loops([rows, *(loop for loop in reduced_loops if loop is not rows), *parallel, vector])

"""Walk a transposition in tiles that stay in the cache."""

from __future__ import annotations

from dataclasses import dataclass

from daceopt.cost.limits import limits
from daceopt.ir.edits.loops import KernelLoops, Nest
from daceopt.ir.edits.schedule_edits import split_loop
from daceopt.ir.schedule.schedule import Loop, Tree
from daceopt.transformations.hardware._scheduling import KernelStep, at_least, chosen, reduced_params


@dataclass(frozen=True)
class TranspositionTiling(KernelStep):
    """Tile the vector loop and the loop that has unit stride where the vector loop has not.

    before:  for i < m: vector for j < n: y[i, j] = x[j, i]
    after:   for i_block: for j_block: for i < 32: vector for j < 32: y[i, j] = x[j, i]

    Each cache line of x then serves a whole tile. ``size``: the edge of a tile; None: as fits the first-level cache
    (32 rows of 32 floats are 4 KiB of each array).
    """

    size: int | None = None

    def edit(self, form: KernelLoops) -> Tree | None:
        nest = form.single
        if nest is None or len(nest.loops) < 2 or nest.loops[-1].kind != "vector" or reduced_params(form, nest):
            return None
        size = chosen(self.size, limits().edge)
        crossed = _crossed_loop(form, nest, size // 2)
        if crossed is None:
            return None
        outer_1, inner_1, mapping_1 = split_loop(crossed, size)
        outer_2, inner_2, mapping_2 = split_loop(nest.loops[-1], size)
        rest = [loop for loop in nest.loops[:-1] if loop is not crossed]
        return form.with_loops([*rest, outer_1, outer_2, inner_1, inner_2], mapping_1 | mapping_2)


def _crossed_loop(form: KernelLoops, nest: Nest, half: int) -> Loop | None:
    """The loop of unit stride where the vector loop has none; loops of less than ``half`` a tile do not count."""
    vector = nest.loops[-1]
    if not at_least(vector.extent, half):
        return None
    long = [loop for loop in nest.loops[:-1] if at_least(loop.extent, half)]
    for reference in (r for body in form.bodies_of(nest) for r in body.references()):
        if reference.step(vector.param) not in (None, 0, 1):
            along = next((loop for loop in long if reference.step(loop.param) == 1), None)
            if along is not None:
                return along
    return None

"""Exchange loops that are directly inside one another."""

from __future__ import annotations

from dataclasses import dataclass

from daceopt.ir.edits.loops import KernelLoops
from daceopt.ir.edits.schedule_edits import reorder
from daceopt.ir.schedule.schedule import Tree
from daceopt.transformations.hardware._scheduling import KernelStep, named


@dataclass(frozen=True)
class MapInterchange(KernelStep):
    """Give loops another order.

    before:  for i0: for i1: f(i0, i1)                     order=("i1", "i0")
    after:   for i1: for i0: f(i0, i1)

    DaCe's ``MapInterchange``, which Rausch et al. (DaCeML, section 6.3) need to fuse convolutions. ``order``: the loops
    from the outermost on; others of the nest keep their places.
    """

    order: str | tuple[str, ...] = ()

    def edit(self, loops: KernelLoops) -> Tree | str:
        order = named(self.order)
        if len(order) < 2:
            return f"order={self.order!r}; expected two loops or more, the outermost first"
        return reorder(loops.tree, order)

"""Give each part of a loop's body a loop of its own, within one kernel."""

from __future__ import annotations

from dataclasses import dataclass

from daceopt.ir.edits.loops import KernelLoops
from daceopt.ir.edits.schedule_edits import distribute
from daceopt.ir.schedule.schedule import Tree
from daceopt.transformations.hardware._scheduling import KernelStep


@dataclass(frozen=True)
class LoopDistribution(KernelStep):
    """Take the statements of a loop apart: the inverse of ``loop-fusion``.

    before:  for i1: { f(i1)  g(i1) }                                            loop="i1"
    after:   for i1: f(i1)    for i1: g(i1)
    """

    loop: str = ""

    def edit(self, loops: KernelLoops) -> Tree | str:
        return distribute(loops.tree, self.loop) if self.loop else "loop='' names no loop"

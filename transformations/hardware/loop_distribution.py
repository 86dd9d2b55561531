"""Give each part of a loop's body a loop of its own, within one kernel."""

from __future__ import annotations

from dataclasses import dataclass

from daceopt.ir.edits.schedule_edits import distribute
from daceopt.ir.graph.graph import Graph
from daceopt.ir.schedule.loop_form import Pair
from daceopt.transformations.hardware._editing import KernelEdit


@dataclass(frozen=True)
class LoopDistribution(KernelEdit):
    """Take the statements of a loop apart: the inverse of ``loop-fusion``.

    before:  for i1: { f(i1)  g(i1) }                                            loop="i1"
    after:   for i1: f(i1)    for i1: g(i1)
    """

    loop: str = ""

    def edited(self, graph: Graph, pair: Pair) -> Pair | str:
        return (pair[0], distribute(pair[1], self.loop)) if self.loop else "loop='' names no loop"

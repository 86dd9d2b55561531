"""Give the ends of a loop loops of their own, so that what is left has whole tiles."""

from __future__ import annotations

from dataclasses import dataclass

from daceopt.errors import DaceoptError
from daceopt.ir.edits.kernel_edits import peel
from daceopt.ir.graph.graph import Graph
from daceopt.ir.schedule.loop_form import Pair
from daceopt.transformations.hardware._editing import KernelEdit


@dataclass(frozen=True)
class LoopPeeling(KernelEdit):
    """Take the first and last iterations of a loop apart.

    before:  for i0 < n: f(i0)                                                   loop="i0", first=2, last=1
    after:   for i0_first < 2: f(i0_first)    for i0 < n - 3: f(i0 + 2)    for i0_last < 1: f(i0_last + n - 1)
    """

    loop: str = ""
    first: int = 0
    last: int = 1

    def __post_init__(self) -> None:
        if min(self.first, self.last) < 0 or self.first + self.last < 1:
            raise DaceoptError(f"first={self.first}, last={self.last}: expected iterations, 1 or more together")

    def edited(self, graph: Graph, pair: Pair) -> Pair | str:
        return peel(pair, self.loop, self.first, self.last) if self.loop else "loop='' names no loop"

"""Give the ends of a loop loops of their own, so that what is left has whole tiles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from daceopt.errors import DaceoptError
from daceopt.ir.edits.kernel_edits import peel
from daceopt.ir.edits.loops import KernelLoops
from daceopt.ir.kernel.kernel import Kernel
from daceopt.transformations.hardware._scheduling import KernelStep


@dataclass(frozen=True)
class LoopPeeling(KernelStep):
    """Take the first and last iterations of a loop apart.

    before:  for i0 < n: f(i0)                                                   loop="i0", first=2, last=1
    after:   for i0_first < 2: f(i0_first)    for i0 < n - 3: f(i0 + 2)    for i0_last < 1: f(i0_last + n - 1)
    """

    changes_dataflow: ClassVar[bool] = True

    loop: str = ""
    first: int = 0
    last: int = 1

    def __post_init__(self) -> None:
        if min(self.first, self.last) < 0 or self.first + self.last < 1:
            raise DaceoptError(f"first={self.first}, last={self.last}: expected iterations, 1 or more together")

    def edit(self, loops: KernelLoops) -> Kernel | str:
        return peel(loops.kernel, self.loop, self.first, self.last) if self.loop else "loop='' names no loop"

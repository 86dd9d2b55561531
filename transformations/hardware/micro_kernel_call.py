"""Hand the innermost loops around a sum of products to a micro-kernel."""

from __future__ import annotations

from dataclasses import dataclass

from daceopt.errors import DaceoptError
from daceopt.ir.edits.loops import KernelLoops
from daceopt.ir.edits.schedule_edits import call
from daceopt.ir.legality.microkernels import PRODUCT
from daceopt.ir.schedule.schedule import Tree
from daceopt.transformations.hardware._scheduling import KernelStep


@dataclass(frozen=True)
class MicroKernelCall(KernelStep):
    """Let one call do the loops of a product of tiles.

    before:  for m < 32: for n < 64: for k < 80: s0(m, n, k)                     statement=0, loops=("m", "n", "k")
    after:   call product: for m < 32: for n < 64: for k < 80: s0(m, n, k)

    ``statement``: by number; ``loops``: the innermost ones around it.
    """

    statement: int = 0
    loops: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.statement < 0:
            raise DaceoptError(f"statement={self.statement}: expected 0 or more")

    def edit(self, loops: KernelLoops) -> Tree | str:
        if not self.loops:
            return "loops=() names no loops"
        return call(loops.tree, self.statement, self.loops, PRODUCT)

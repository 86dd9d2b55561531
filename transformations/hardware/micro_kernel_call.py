"""Hand the innermost loops around a sum of products, or around a tile that is transposed, to a micro-kernel."""

from __future__ import annotations

from dataclasses import dataclass

from daceopt.errors import DaceoptError
from daceopt.ir.edits.attempt import Edit, Edited, after_those_that_are_legal, attempt
from daceopt.ir.edits.loops import KernelLoops
from daceopt.ir.edits.schedule_edits import call
from daceopt.ir.legality.microkernels import PRODUCT, TRANSPOSITION
from daceopt.transformations.hardware._scheduling import KernelStep


@dataclass(frozen=True)
class MicroKernelCall(KernelStep):
    """Let one call do the loops of a product of tiles, or of a copy that turns a tile round.

    before:  for m < 32: for n < 64: for k < 80: s0(m, n, k)                     statement=0, loops=("m", "n", "k")
    after:   call product: for m < 32: for n < 64: for k < 80: s0(m, n, k)

    ``statement``: by number, a product; ``loops``: the innermost ones around it. Without ``loops``: all that
    there are in kernels with serial loops or tiles of their own, which no step has scheduled.
    """

    statement: int = 0
    loops: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.statement < 0:
            raise DaceoptError(f"statement={self.statement}: expected 0 or more")

    def edit(self, loops: KernelLoops) -> Edited:
        if self.loops:
            return call(loops.tree, self.statement, self.loops, PRODUCT)
        if loops.is_scheduled or not loops.kernel.is_tiled:
            return None
        return after_those_that_are_legal(loops, map(_called, range(len(loops.kernel.stages))))


def _called(statement: int) -> Edit:
    """A call for the innermost loops of a sum of products, three or else two, or of a copy."""

    def edit(loops: KernelLoops) -> KernelLoops | None:
        kernel, stage = loops.kernel, loops.kernel.stages[statement]
        is_sum = any(a.wcr == "sum" for a in stage.writes.values()) and len(stage.reads) == 2
        microkernel, counts = (PRODUCT, (3, 2)) if is_sum else (TRANSPOSITION, (2,) if stage.copy else ())
        inside = [p for p in stage.params if p not in (*kernel.outer, *kernel.serial)]
        possible = [inside[-count:] for count in counts if len(inside) >= count]
        for params in possible:
            after = attempt(loops, lambda _, p=params: call(loops.tree, statement, p, microkernel))  # type: ignore[misc]
            if isinstance(after, KernelLoops):
                return after
        return None

    return edit

"""Compute what a loop reads of other statements inside of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from daceopt.ir.edits.kernel_edits import compute_at
from daceopt.ir.edits.loops import KernelLoops
from daceopt.ir.kernel.kernel import Kernel
from daceopt.transformations.hardware._scheduling import KernelStep


@dataclass(frozen=True)
class ComputationPlacement(KernelStep):
    """Let each iteration of a loop compute the results of other statements that it reads, in locals of its own.

    before:  for i < n + 2: a[i] = f(x[i])    for b: for t < 8: y[8*b + t] = a[8*b + t] + a[8*b + t + 2]
    after:   for b: local a_2: { for e < 10: a_2[e] = f(x[8*b + e])    for t < 8: y[8*b + t] = a_2[t] + a_2[t + 2] }

    Halide's ``compute_at`` (Ragan-Kelley et al., PLDI 2013). ``statements``: by number; ``loop``: around all that read.
    """

    changes_dataflow: ClassVar[bool] = True

    statements: tuple[int, ...] = ()
    loop: str = ""
    scope: str = "thread"

    def edit(self, loops: KernelLoops) -> Kernel | str:
        if not self.statements or not self.loop:
            return f"statements={self.statements}, loop={self.loop!r}; expected numbers of statements, and a loop"
        wrong = next((k for k in self.statements if not 0 <= k < len(loops.kernel.stages)), None)
        if wrong is not None:
            return f"there is no statement s{wrong}; there are {len(loops.kernel.stages)}"
        return compute_at(loops.graph, loops.kernel, self.statements, self.loop, self.scope)

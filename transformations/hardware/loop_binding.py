"""Run a loop in threads, in vectors, unrolled, or in turn."""

from __future__ import annotations

from dataclasses import dataclass

from daceopt.errors import DaceoptError, did_you_mean
from daceopt.ir.edits.loops import KernelLoops
from daceopt.ir.edits.schedule_edits import bind, unroll
from daceopt.ir.legality.hardware import LIMITS
from daceopt.ir.schedule.schedule import HARDWARE, KINDS, Tree
from daceopt.transformations.hardware._scheduling import KernelStep, named


@dataclass(frozen=True)
class LoopBinding(KernelStep):
    """Give loops to other hardware.

    before:  for i0 < n: for i1 < m: f(i0, i1)                                   loops="i1", kind="vector"
    after:   for i0 < n: vector for i1 < m: f(i0, i1)

    ``kind``: "serial", "parallel", "vector", "parallel vector", "unroll", or of an accelerator "grid", "block", "warp".
    """

    loops: str | tuple[str, ...] = ()
    kind: str = "parallel"

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            hint = did_you_mean(self.kind, KINDS)
            raise DaceoptError(f"kind={self.kind!r}: expected one of {', '.join(KINDS)}{hint}")

    def edit(self, loops: KernelLoops) -> Tree | str:
        if not self.loops:
            return "loops=() names no loop"
        if self.kind in HARDWARE and loops.graph.options.target not in LIMITS:
            return f"a {self.kind} loop is one of an accelerator; the target is {loops.graph.options.target}"
        tree = loops.tree
        for name in named(self.loops):
            tree = unroll(tree, name) if self.kind == "unroll" else bind(tree, name, self.kind)
        return tree

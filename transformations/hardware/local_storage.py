"""Let what one iteration of a loop reads or writes of an array be in memory of its own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import ClassVar

from daceopt.errors import DaceoptError
from daceopt.ir.edits.kernel_edits import stage_reads, stage_writes
from daceopt.ir.edits.loops import KernelLoops
from daceopt.ir.kernel.kernel import Kernel
from daceopt.ir.schedule.schedule import SCOPES
from daceopt.transformations.hardware._scheduling import KernelStep


@dataclass(frozen=True)
class LocalStorage(KernelStep):
    """Copy what an iteration reads of an array into a local before it, or what it writes to the array behind it.

    before:  for b: for t < 8: y[8*b + t] = x[8*b + t] + x[8*b + t + 1]                     array="x*", loop="b"
    after:   for b: local x_2: { for e < 9: x_2[e] = x[8*b + e]    for t < 8: y[8*b + t] = x_2[t] + x_2[t + 1] }

    DaCe's ``InLocalStorage`` and ``OutLocalStorage`` (Rausch et al., DaCeML, section 5.2). ``array``: its name, with
    wildcards, where it is in the graph; a kernel that reads and writes such arrays stages all of them. ``loop``:
    the loop whose iterations have the local, around all statements. ``scope``: "thread" or "shared".
    """

    changes_dataflow: ClassVar[bool] = True

    array: str = "*"
    loop: str = ""
    scope: str = "thread"

    def __post_init__(self) -> None:
        if self.scope not in SCOPES:
            raise DaceoptError(f"scope={self.scope!r}: expected one of {', '.join(SCOPES)}")

    def edit(self, loops: KernelLoops) -> Kernel | str | None:
        kernel = loops.kernel
        reads = self._named(a.array for a in kernel.reads())
        writes = self._named(a.array for a in kernel.writes())
        if not reads and not writes:
            return None
        if not self.loop:
            return "loop='' names no loop; expected the one whose iterations have the local"
        for array in reads:
            kernel = stage_reads(loops.graph, kernel, array, self.loop, self.scope)
        for array in writes:
            kernel = stage_writes(loops.graph, kernel, array, self.loop, self.scope)
        return kernel

    def _named(self, arrays: Iterable[str]) -> list[str]:
        return [a for a in dict.fromkeys(arrays) if fnmatchcase(a, self.array)]

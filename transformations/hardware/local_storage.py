"""Let what one iteration of a loop reads or writes of an array stand in memory of its own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from daceopt.errors import DaceoptError
from daceopt.ir.edits.kernel_edits import stage_reads, stage_writes
from daceopt.ir.graph.graph import Graph
from daceopt.ir.schedule.loop_form import Pair
from daceopt.ir.schedule.schedule import SCOPES
from daceopt.transformations.hardware._editing import KernelEdit


@dataclass(frozen=True)
class LocalStorage(KernelEdit):
    """Copy what an iteration reads of an array into a local before it, or what it writes to the array behind it.

    before:  for b: for t < 8: y[8*b + t] = x[8*b + t] + x[8*b + t + 1]                     array="x*", loop="b"
    after:   for b: local x_2: { for e < 9: x_2[e] = x[8*b + e]    for t < 8: y[8*b + t] = x_2[t] + x_2[t + 1] }

    DaCe's ``InLocalStorage`` and ``OutLocalStorage`` (Rausch et al., DaCeML, section 5.2). ``array``: its name, with
    wildcards, where it stands in the graph; a kernel that reads and writes such arrays stages all of them. ``loop``:
    the loop whose iterations have the local, around all statements. ``scope``: "thread" or "shared".
    """

    array: str = "*"
    loop: str = ""
    scope: str = "thread"

    def __post_init__(self) -> None:
        if self.scope not in SCOPES:
            raise DaceoptError(f"scope={self.scope!r}: expected one of {', '.join(SCOPES)}")

    def edited(self, graph: Graph, pair: Pair) -> Pair | str | None:
        kernel = pair[0]
        reads = self._named(a.array for a in kernel.reads())
        writes = self._named(a.array for a in kernel.writes())
        if not reads and not writes:
            return None
        if not self.loop:
            return "loop='' names no loop; expected the one whose iterations have the local"
        for array in reads:
            pair = stage_reads(graph, pair, array, self.loop, self.scope)
        for array in writes:
            pair = stage_writes(graph, pair, array, self.loop, self.scope)
        return pair

    def _named(self, arrays: Iterable[str]) -> list[str]:
        return [a for a in dict.fromkeys(arrays) if fnmatchcase(a, self.array)]

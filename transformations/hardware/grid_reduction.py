"""Reduce in two kernels what would keep only a few blocks of an accelerator busy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import ClassVar

from daceopt.ir.graph.graph import Graph
from daceopt.ir.kernel.kernel import Access, Kernel, Stage
from daceopt.ir.kernel.tasklet import Assignment
from daceopt.ir.legality.hardware import LANES
from daceopt.ir.scalar import scalar, types
from daceopt.ir.schedule.loop_form import fresh
from daceopt.ir.schedule.schedule import Param
from daceopt.passes.transform import NearMiss, Site, Transformation


@dataclass(frozen=True)
class GridReduction(Transformation):
    """Let blocks reduce parts of a long loop, and a second kernel what they have found.

    before:  for j < 512: for i < 65536: s[j] += x[i, j]
    after:   for c < 256: for j < 512: for i < 256: part[c, j] += x[256*c + i, j]
             for j < 512: for c < 256: s[j] += part[c, j]

    Blocks do not wait for one another, so what is reduced by one kernel has as many as there are results: rows, or 32
    columns each. ``blocks``: as many as keep a device busy; ``rows``: elements of a column that a part has at least, of
    a row 32 times as many. Parts are equal: their number divides the loop.
    """

    level: ClassVar[str] = "hardware"
    sites_are_independent: ClassVar[bool] = True

    blocks: int = 1024
    rows: int = 64

    def match(self, graph: Graph) -> Iterator[Site | NearMiss]:
        for node in graph.kernels():
            kernel = node.kernel
            reduced = _reduced_loops(kernel)
            if not reduced:
                continue
            parts = self._parts(graph, kernel, reduced)
            if isinstance(parts, str):
                yield NearMiss(node, parts)
            elif parts is not None:
                yield Site(graph, (node,), {"loop": parts[0], "parts": parts[1]})

    def apply(self, site: Site) -> None:
        graph, node = site.graph, site.nodes[0]
        kernel = node.kernel
        graph.remove(node)
        for part in _in_parts(graph, kernel, site["loop"], site["parts"]):
            graph.add_kernel(part)

    def _parts(self, graph: Graph, kernel: Kernel, reduced: tuple[Param, ...]) -> tuple[Param, int] | str | None:
        """The loop to cut and the number of its parts; None where there are blocks enough."""
        extents = kernel.extents
        if not all(isinstance(n, int) for n in extents.values()):
            return "sizes that are not known"
        (stage,) = kernel.stages
        results = prod(int(extents[p]) for p in stage.params if p not in reduced)
        total = prod(int(extents[p]) for p in reduced)
        along = _along(graph, stage)
        in_rows = along is None or along in reduced
        blocks, least = (results, self.rows * LANES) if in_rows else (-(-results // LANES), self.rows)
        others = [p for p in reduced if p != along] or list(reduced)
        longest = max(others, key=lambda p: int(extents[p]))
        most = min(self.blocks // max(blocks, 1), total // least)
        parts = max((d for d in range(1, most + 1) if int(extents[longest]) % d == 0), default=1)
        return (longest, parts) if parts > 1 else None


def _reduced_loops(kernel: Kernel) -> tuple[Param, ...]:
    """The loops over which a kernel of one statement reduces; none where results differ in them."""
    if len(kernel.stages) > 1 or kernel.locals or kernel.schedule is not None or kernel.serial:
        return ()
    (stage,) = kernel.stages
    sets = {stage.reduced_params(c) for c in stage.writes} - {()}
    return sets.pop() if len(sets) == 1 else ()


def _along(graph: Graph, stage: Stage) -> Param | None:
    """The loop along which most reads walk memory."""
    votes: dict[Param, int] = {}
    for access in stage.reads.values():
        if None in access.index or not access.index:
            continue
        neighbours = {e for e, step in zip(access.index, graph.strides(access.array)) if step == 1}
        for p in stage.params:
            if any(isinstance(e, type(p)) and e == p for e in neighbours):
                votes[p] = votes.get(p, 0) + len(access.params())
    return max(votes, key=lambda p: votes[p], default=None)


def _in_parts(graph: Graph, kernel: Kernel, loop: Param, parts: int) -> list[Kernel]:
    (stage,) = kernel.stages
    extent = int(kernel.extents[loop])
    names = set(kernel.extents)
    chunk = fresh(f"{loop}_part", names)
    inner = fresh(str(loop), {*names, chunk})
    params = tuple(p for p in stage.params if p not in _reduced_loops(kernel))
    inside = tuple(inner if p == loop else p for p in stage.params)
    first = stage.subs({loop: chunk * (extent // parts) + inner}, (chunk, *inside))
    reads: dict[str, Access] = {}
    results: dict[str, Access] = {}
    code: list[Assignment] = []
    for c, access in stage.writes.items():
        if not stage.reduced_params(c):
            continue
        dtype = types.compute_type(graph.dtype(access.array))
        name = graph.add_array(f"{access.array}_parts", (parts, *(kernel.extents[p] for p in params)), dtype)
        own = (chunk, *params)
        first = replace(first, writes={**first.writes, c: Access(name, own, access.wcr)})
        part = f"part_{c}"
        reads[part], results[c] = Access(name, own), access
        code.append(Assignment(scalar.symbol(c, dtype), scalar.symbol(part, dtype), dtype))
    sizes = {p: n for p, n in kernel.extents.items() if p != loop}
    whole = Stage((chunk, *params), reads, results, tuple(code))
    end = Kernel(kernel.label, {chunk: parts, **{p: kernel.extents[p] for p in params}}, [whole])
    return [Kernel(kernel.label, {chunk: parts, **sizes, inner: extent // parts}, [first]), end]

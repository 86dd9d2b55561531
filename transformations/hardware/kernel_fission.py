"""Take apart kernels that the blocks of an accelerator cannot run on their own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import Any, ClassVar

from dace import nodes

from daceopt.autodiff import splitting
from daceopt.errors import Unsupported
from daceopt.ir import schedule, types
from daceopt.ir.graph import Graph
from daceopt.ir.hardware import CUDA
from daceopt.ir.kernel import Kernel, Stage
from daceopt.ir.schedule import Alloc, Param
from daceopt.transform import NearMiss, Site, Transformation


@dataclass(frozen=True)
class KernelFission(Transformation):
    """Give each statement a kernel of its own where blocks would wait for one another, or their locals do not fit.

    before:  for i: { for j: s += x[i, j];  for j: { y[i, j] = x[i, j] / s;  g[j] += y[i, j] } }
    after:   for i: for j: s[i] += x[i, j]    for i: for j: { y[i, j] = x[i, j] / s[i];  g[j] += y[i, j] }

    A sum over the loops that the statements share needs all blocks. ``shared``: bytes of locals that a block may hold.
    Sums over different loops of one statement become two kernels.
    """

    level: ClassVar[str] = "hardware"
    sites_are_independent: ClassVar[bool] = True
    shared: int = CUDA.shared // 2  # what collective operations exchange takes up to 8 KiB each

    def match(self, graph: Graph) -> Iterator[Site | NearMiss]:
        for node in graph.nodes():
            if isinstance(node, nodes.MapEntry):
                yield from self.match_at(graph, node)

    def match_at(self, graph: Graph, node: Any) -> Iterable[Site | NearMiss]:
        try:
            kernel = Kernel.extract(graph, node)
        except Unsupported as error:
            yield NearMiss(node, str(error))
            return
        if self._waits(kernel) or self._is_large(kernel) or len(_reduced_sets(kernel)) > 1:
            yield Site(graph, (node,))

    def apply(self, site: Site) -> None:
        parts, _ = splitting.split(site.graph, site.nodes[0])
        for entry in parts:
            _split_sums(site.graph, entry)

    @staticmethod
    def _waits(kernel: Kernel) -> bool:
        """Is something reduced over loops that several statements share?"""
        shared = set(kernel.outer) if len(kernel.stages) > 1 or kernel.locals else set()
        writes = ((s, c) for s in kernel.stages for c, a in s.writes.items() if a.array not in kernel.locals)
        return any(shared & set(s.reduced(c)) for s, c in writes)

    def _is_large(self, kernel: Kernel) -> bool:
        registers = {
            n.array
            for n, _ in schedule.walk(schedule.schedule_of(kernel))
            if isinstance(n, Alloc) and n.scope == "register"
        }
        sizes = [prod(shape) * types.itemsize(t) for a, (t, shape) in kernel.locals.items() if a not in registers]
        return not all(isinstance(n, int) for n in sizes) or sum(sizes) > self.shared


def _reduced_sets(kernel: Kernel) -> set[frozenset[Param]]:
    """Of a kernel of one statement: the loops over which its writes are reduced, where they are."""
    if len(kernel.stages) > 1 or kernel.locals:
        return set()
    (stage,) = kernel.stages
    return {frozenset(stage.reduced(c)) for c in stage.writes} - {frozenset()}


def _split_sums(graph: Graph, entry: nodes.MapEntry) -> None:
    """A kernel for each set of reduced loops, the first with all that is not reduced."""
    kernel = Kernel.extract(graph, entry)
    different = sorted(_reduced_sets(kernel), key=lambda found: sorted(map(str, found)))
    if len(different) < 2:
        return
    (stage,) = kernel.stages
    graph.remove(entry)
    for k, reduced in enumerate(different):
        wanted = [reduced, frozenset()] if k == 0 else [reduced]
        writes = {c: a for c, a in stage.writes.items() if frozenset(stage.reduced(c)) in wanted}
        replace(kernel, stages=[_with_writes(stage, writes)], schedule=None).emit(graph)


def _with_writes(stage: Stage, writes: dict[str, Any]) -> Stage:
    return Stage(stage.params, stage.reads, writes, stage.assignments)

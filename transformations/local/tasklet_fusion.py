"""Fuse chains of element-wise kernels into one symbolic tasklet."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from daceopt.ir.access.iteration import canonical
from daceopt.ir.fusion.fusion import collapse
from daceopt.ir.fusion.fusion_plan import FusionGroup, FusionPlan
from daceopt.ir.fusion.merge_memory import MergeMemory
from daceopt.ir.graph.graph import Graph
from daceopt.ir.kernel.kernel import Kernel
from daceopt.ir.kernel.kernel_node import KernelNode
from daceopt.passes.transform import Site, Transformation


@dataclass(frozen=True)
class TaskletFusion(Transformation):
    """Put a point-wise producer into its only consumer, over the same iteration space.

    before:  for i: t[i] = f(x[i])    for i: y[i] = g(t[i], x[i])
    after:   for i: { t = f(x[i]); y[i] = g(t, x[i]) }    (one tasklet of two assignments)

    Before differentiation this decides what is recomputed: the intermediate is no array any more, so the backward pass
    differentiates the whole tasklet from its inputs (Rausch et al., DaCeML, section 5.3).
    """

    level: ClassVar[str] = "local"
    sites_are_independent: ClassVar[bool] = True
    max_assignments: int = 64

    def match(self, graph: Graph) -> Iterator[Site]:
        kernels = [n for n in graph.kernels() if len(n.kernel.stages) == 1]
        plan, memory = FusionPlan(graph, eligible=frozenset(kernels), keeps_order=False), MergeMemory(graph)
        for node in reversed(kernels):
            if len(plan.group_of(node).members) == 1:
                self._absorb(plan, memory, node)
        for group in sorted(plan.fused_groups(), key=lambda g: g.last, reverse=True):
            yield Site(graph, group.members, {"kernel": group.kernel})

    def apply(self, site: Site) -> None:
        site.graph.take_out(site.nodes)
        site.graph.add_kernel(canonical(site["kernel"]))

    def _absorb(self, plan: FusionPlan, memory: MergeMemory, node: KernelNode) -> None:
        """Pull into ``node`` every producer that nothing else reads, and theirs in turn."""
        waiting = _read(plan.group_of(node))
        while waiting:
            group = plan.group_of(node)
            producer = _lone_producer(plan, waiting.pop(), group)
            fused = None if producer is None else self._fuse(memory, producer.kernel, group.kernel)
            if producer is not None and fused is not None:
                waiting = _read(plan.join(producer, group, fused))

    def _fuse(self, memory: MergeMemory, first: Kernel | None, second: Kernel | None) -> Kernel | None:
        if first is None or second is None:
            return None
        (early,), (late,) = first.stages, second.stages
        if len(early.params) != len(late.params) or any(a.wcr for a in early.writes.values()):
            return None
        if len(early.assignments) + len(late.assignments) > self.max_assignments:
            return None
        fused = memory.merge(first, second, lambda array: False, "one statement", _in_one_statement)
        return fused if isinstance(fused, Kernel) else None


def _in_one_statement(merged: Kernel) -> Kernel | str:
    return collapse(merged) or "its statements do not run over the same elements"


def _read(group: FusionGroup) -> list[str]:
    return [] if group.kernel is None else [access.array for access in group.kernel.reads()]


def _lone_producer(plan: FusionPlan, array: str, reader: FusionGroup) -> FusionGroup | None:
    """The group that writes ``array`` alone and whose results only ``reader`` reads."""
    sources = plan.graph.sources(array)
    group = plan.writer.get(sources[0]) if len(sources) == 1 else None
    if group is None or plan.readers_of(group) != [reader] or any(map(plan.graph.is_kept, group.writes)):
        return None
    return group

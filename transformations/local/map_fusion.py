"""Fuse element-wise, broadcast and reduction kernels over equal, permuted or split iteration spaces."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from daceopt.ir import fusion_profit
from daceopt.ir.fusion_plan import FusionGroup, FusionPlan, emit
from daceopt.ir.graph import Graph
from daceopt.ir.kernel import Kernel
from daceopt.passes.transform import NearMiss, Site, Transformation


@dataclass(frozen=True)
class MapFusion(Transformation):
    """Merge kernels that share data, so that it stays in registers or in a row buffer.

    before:  for i,j: t[i,j] = f(x[i,j])     for i,j: s[i] += t[i,j]     for i,j: y[i,j] = g(t[i,j], s[i])
    after:   for i: { for j: { t_l[j] = f(x[i,j]); s_l += t_l[j] }  for j: y[i,j] = g(t_l[j], s_l) }

    Greedy in topological order: a kernel joins its producers (most data first), then siblings that read the same data
    (Rausch et al., DaCeML, section 5.2; greedy enumeration with path constraints). The decision looks only at address
    functions. ``max_stages`` bounds the tasklets of one kernel.
    """

    level: ClassVar[str] = "local"
    sites_are_independent: ClassVar[bool] = True
    max_stages: int = 48

    def match(self, graph: Graph) -> Iterator[Site | NearMiss]:
        plan = FusionPlan(graph, self.max_stages)
        greedy = _Greedy(plan)
        greedy.fuse_producers()
        greedy.fuse_siblings()
        for group in plan.fused():
            yield Site(graph, tuple(group.members), {"kernel": group.kernel})
        yield from (NearMiss(node, reason) for node, reason in plan.misses)

    def apply(self, site: Site) -> None:
        emit(site.graph, site.nodes, site["kernel"])


class _Greedy:
    def __init__(self, plan: FusionPlan):
        self._plan = plan

    # ------------------------------------------------------------ vertical

    def fuse_producers(self) -> None:
        for node in self._plan.nodes:
            tried: set[FusionGroup] = set()
            while (producer := self._next_producer(self._plan.group_of(node), tried)) is not None:
                tried.add(producer)
                self._try(producer, self._plan.group_of(node))

    def _next_producer(self, group: FusionGroup, tried: set[FusionGroup]) -> FusionGroup | None:
        if group.kernel is None:
            return None
        plan = self._plan
        options = {plan.writer[a]: plan.bytes_of(a) for a in group.reads if a in plan.writer}
        options = {g: b for g, b in options.items() if g is not group and g.kernel is not None and g not in tried}
        return max(options, key=lambda g: options[g], default=None)

    # ------------------------------------------------------------ siblings

    def fuse_siblings(self) -> None:
        plan = self._plan
        for array in sorted(plan.readers, key=plan.bytes_of, reverse=True):
            if plan.bytes_of(array) <= fusion_profit.SMALL:
                break
            groups = [g for g in plan.readers[array] if g.kernel is not None]
            for k, second in enumerate(groups):
                for first in groups[:k]:
                    if first in plan.readers[array] and second in plan.readers[array] and first is not second:
                        early, late = sorted((first, second), key=lambda g: g.last)
                        pair = (late, early) if early in plan.readers_of(late) else (early, late)
                        self._try(*pair, siblings=True)

    # ------------------------------------------------------------ one step

    def _try(self, first: FusionGroup, second: FusionGroup, siblings: bool = False) -> None:
        if self._plan.why_not(first, second) is not None:
            return
        reason = self._plan.attempt(first, second, self._siblings if siblings else self._accept)
        if reason is not None:
            self._plan.misses.append((second.members[0], reason))

    def _accept(self, first: FusionGroup, second: FusionGroup, merged: Kernel) -> str | None:
        assert first.kernel is not None and second.kernel is not None
        return fusion_profit.why_slower(self._plan.graph, first.kernel, second.kernel, merged)

    def _siblings(self, first: FusionGroup, second: FusionGroup, merged: Kernel) -> str | None:
        assert second.kernel is not None
        same = fusion_profit.same_space(second.kernel, merged)
        return self._accept(first, second, merged) if same else "iteration spaces differ"

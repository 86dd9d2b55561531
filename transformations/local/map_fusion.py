"""Fuse element-wise, broadcast and reduction kernels over equal, permuted or split iteration spaces."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from daceopt.ir.fusion.fusion_plan import FusionPlan, emit
from daceopt.ir.graph.graph import Graph
from daceopt.passes.transform import NearMiss, Site, Transformation
from daceopt.transformations.local._greedy_fusion import GreedyFusion


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
        GreedyFusion(plan).run()
        for group in plan.fused_groups():
            yield Site(graph, tuple(group.members), {"kernel": group.kernel})
        yield from (NearMiss(node, reason) for node, reason in plan.misses)

    def apply(self, site: Site) -> None:
        emit(site.graph, site.nodes, site["kernel"])

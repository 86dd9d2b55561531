"""Fuse reductions with what follows them, where both have the same loops and what lies between fits near them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from daceopt.cost.limits import limits
from daceopt.ir.access.reduction_form import forms
from daceopt.ir.edits.attempt import commit
from daceopt.ir.fusion import fusion_profit
from daceopt.ir.fusion.fusion import local_elements
from daceopt.ir.fusion.fusion_plan import FusionGroup, FusionPlan, emit
from daceopt.ir.graph.graph import Graph
from daceopt.ir.kernel.kernel import Kernel
from daceopt.ir.legality.hardware import LIMITS
from daceopt.ir.scalar import types
from daceopt.ir.schedule import schedule
from daceopt.passes.aggregation_rules import TABLE_2, AggregationRule, RuleSet
from daceopt.passes.transform import NearMiss, Site, Transformation
from daceopt.transformations.partition._aggregating import Growth
from daceopt.transformations.partition.cluster_extraction import is_eligible


@dataclass(frozen=True)
class MemoryStitching(Transformation):
    """Merge a reduction with the element-wise operators, broadcasts and reductions that read it, by Table 2.

    before:  for i, j: s[i] += exp(x[i, j])        for i, j: y[i, j] = exp(x[i, j]) / s[i]
    after:   for i: local s_l in thread: { for j: s_l += exp(x[i, j]);  for j: y[i, j] = exp(x[i, j]) / s_l }

    APOLLO (Zhao et al., MLSys 2022, section 4.2 and Algorithm 2). Both must walk the same parallel loops; two
    reductions must have the same canonical form (``reduction_form``). The tensors in between live in one iteration of
    the shared loops where they fit into ``capacity`` bytes (None: what the machine, or a block of the accelerator,
    has), else they stay in memory and the kernels apart. ``rules`` as of ``aggregation``.
    """

    level: ClassVar[str] = "local"
    sites_are_independent: ClassVar[bool] = True
    rules: Any = TABLE_2
    capacity: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "rules", RuleSet.of(self.rules))

    def match(self, graph: Graph) -> Iterator[Site | NearMiss]:
        eligible = [n for n in graph.nodes() if is_eligible(n)]
        plan = FusionPlan(graph, eligible=eligible)
        growth = Growth(plan, self.rules, eligible, _Stitching(graph, self.capacity).judge)
        growth.run()
        for group in plan.fused_groups():
            yield Site(graph, group.members, {"kernel": group.kernel, "title": growth.title(group)})
        yield from (NearMiss(node, reason) for node, reason in plan.misses)

    def apply(self, site: Site) -> None:
        """The tensors in between live in each thread until a later step finds that a register or a block has them."""
        node = emit(site.graph, site.nodes, site["kernel"])
        commit(site.graph, node, schedule.default(node.kernel))


class _Stitching:
    def __init__(self, graph: Graph, capacity: int | None):
        self._graph = graph
        target = LIMITS.get(graph.options.target)
        own = limits().nearby if target is None else target.shared
        self._capacity = own if capacity is None else capacity

    def judge(self, _: AggregationRule, first: FusionGroup, second: FusionGroup, merged: Kernel) -> str | None:
        """Why both do not fit together, or None."""
        assert first.kernel is not None and second.kernel is not None
        return (
            self._other_form(first.kernel, second.kernel)
            or fusion_profit.why_slower(self._graph, first.kernel, second.kernel, merged)
            or self._too_large(merged)
        )

    def _other_form(self, first: Kernel, second: Kernel) -> str | None:
        ours, theirs = forms(self._graph, first), forms(self._graph, second)
        odd = next(((a, b) for a in ours for b in theirs if not a.matches(b)), None)
        return None if odd is None else f"their canonical forms differ: {odd[0]}, and {odd[1]}"

    def _too_large(self, merged: Kernel) -> str | None:
        elements = local_elements(merged).items()
        sizes = {name: count * types.itemsize(merged.locals[name][0]) for name, count in elements}
        total = sum(sizes.values())
        if isinstance(total, int) and total <= self._capacity:
            return None
        name = max(sizes, key=lambda n: float(sizes[n]) if isinstance(sizes[n], int) else float("inf"))
        return f"{name} stays in memory: {total} bytes for each iteration are more than {self._capacity}"

"""Partition the graph into micro-graphs by rules, and make each of them one kernel."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from daceopt.ir.access.iteration import canonical
from daceopt.ir.fusion import fusion_profit
from daceopt.ir.fusion.fusion import collapse
from daceopt.ir.fusion.fusion_plan import FusionGroup, FusionPlan, emit
from daceopt.ir.graph.graph import Graph
from daceopt.ir.kernel.kernel import Kernel
from daceopt.ir.kernel.kernel_node import KernelNode
from daceopt.passes.aggregation_rules import TABLE_1, AggregationRule, RuleSet
from daceopt.passes.transform import NearMiss, Site, Transformation
from daceopt.transformations.local._epilogues import is_product, why_no_epilogue
from daceopt.transformations.local.epilogue_fusion import EpilogueFusion
from daceopt.transformations.partition._aggregating import Growth, Judge
from daceopt.transformations.partition.cluster_extraction import is_eligible


@dataclass(frozen=True)
class Aggregation(Transformation):
    """Merge micro-graphs by the rules of Table 1, in the order of their priority, until none applies.

    before:  a = exp(x)    b = a + bias    s = sum(b)    y = b - s        (four micro-graphs of one node)
    after:   for i: { s += exp(x) + bias }               y = ...          (a reduction; element-wise)

    APOLLO (Zhao et al., MLSys 2022, section 3.3 and Algorithm 1). Types follow from dataflow (``micro_graph``).
    ``rules``: text or a ``RuleSet`` (``passes.aggregation_rules``): ``"table-1"``, ``"1; 4; mine: opaque ->
    element-wise = opaque"``. A merge that a rule allows and no kernel can do, or that would be slower, is not made: the
    near misses say why. Products and convolutions take what their library's epilogue can. No rule applies where it
    would close a cycle.
    """

    level: ClassVar[str] = "local"
    sites_are_independent: ClassVar[bool] = True
    rules: Any = TABLE_1
    max_stages: int = 48

    def __post_init__(self) -> None:
        object.__setattr__(self, "rules", RuleSet.of(self.rules))

    def match(self, graph: Graph) -> Iterator[Site | NearMiss]:
        eligible = [n for n in graph.nodes() if is_eligible(n)]
        plan = FusionPlan(graph, self.max_stages, eligible)
        products = _Products(plan)
        growth = Growth(plan, self.rules, eligible, _slower(graph), products.take)
        growth.run()
        for group in plan.fused_groups():
            kernel = group.kernel or products.tails[group]
            yield Site(graph, group.members, {"kernel": kernel, "title": growth.title(group)})
        yield from (NearMiss(node, reason) for node, reason in plan.misses)

    def apply(self, site: Site) -> None:
        graph, kernels = site.graph, [n for n in site.nodes if isinstance(n, KernelNode)]
        libraries = [n for n in site.nodes if n not in kernels]
        emit(graph, kernels, site["kernel"])
        step = EpilogueFusion()
        for node in libraries:
            place = next((site for site in step.match_at(graph, node) if isinstance(site, Site)), None)
            if place is not None:
                step.apply(place)


def _slower(graph: Graph) -> Judge:
    def judge(_: AggregationRule, first: FusionGroup, second: FusionGroup, merged: Kernel) -> str | None:
        assert first.kernel is not None and second.kernel is not None
        return fusion_profit.why_slower(graph, first.kernel, second.kernel, merged)

    return judge


class _Products:
    """Library nodes take what their epilogue can: a sum with a bias and a residual, an activation."""

    def __init__(self, plan: FusionPlan):
        self._plan = plan
        self.tails: dict[FusionGroup, Kernel] = {}  # of a group around a library node: what follows the product

    def take(self, first: FusionGroup, second: FusionGroup) -> str | None:
        """Make one group of a library node and its only reader, where the node can do what the reader does."""
        plan, node = self._plan, first.members[0]
        if second.kernel is None:
            return "no library computes an operand while it reads it"
        if first in self.tails or not is_product(node):
            return "the library node has its epilogue already" if first in self.tails else "it takes no epilogue"
        if any(plan.is_needed(a, second, second) for a in first.writes):
            return "somebody else reads the product"
        if plan.clusters.obstacle(node, second.members[0]) is not None:
            return "the epilogue needs what depends on the product in another way"
        kernel = collapse(canonical(second.kernel))
        reason = "the reader has several stages" if kernel is None else why_no_epilogue(plan.graph, node, kernel)
        if reason is None:
            self.tails[plan.join(first, second, None)] = second.kernel
        return reason

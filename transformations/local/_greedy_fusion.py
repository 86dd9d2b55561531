"""Greedy growth of kernels over a fusion plan: what ``map-fusion`` does, and where exploration begins."""

from __future__ import annotations

from daceopt.ir.fusion import fusion_profit
from daceopt.ir.fusion.fusion_plan import FusionGroup, FusionPlan
from daceopt.ir.kernel.kernel import Kernel


class GreedyFusion:
    """Kernels join their producers, most data first, then siblings that read the same data."""

    def __init__(self, plan: FusionPlan):
        self._plan = plan

    def run(self) -> None:
        """Leave the plan with the groups that it ends in."""
        for node in self._plan.nodes:
            self._plan.take_producers(node, self._try)
        self._fuse_siblings()

    def _fuse_siblings(self) -> None:
        plan = self._plan
        for array in sorted(plan.readers, key=plan.elements_of, reverse=True):
            if fusion_profit.is_small(plan.graph.size(array)):
                continue
            groups = [g for g in plan.readers[array] if g.kernel is not None]
            for k, second in enumerate(groups):
                for first in groups[:k]:
                    if first in plan.readers[array] and second in plan.readers[array] and first is not second:
                        early, late = sorted((first, second), key=lambda g: g.last)
                        pair = (late, early) if early in plan.readers_of(late) else (early, late)
                        reason = self._try(*pair, siblings=True)
                        if reason is not None:
                            plan.misses.append((pair[1].members[0], reason))

    def _try(self, first: FusionGroup, second: FusionGroup, siblings: bool = False) -> str | None:
        """Why their loops cannot be one; None where they are, and where nothing else lets them."""
        if self._plan.why_not(first, second) is not None:
            return None
        accept, policy = (self._siblings, "siblings") if siblings else (self._accept, "producers")
        return self._plan.attempt(first, second, accept, policy)

    def _accept(self, first: FusionGroup, second: FusionGroup, merged: Kernel) -> str | None:
        assert first.kernel is not None and second.kernel is not None
        return fusion_profit.why_slower(self._plan.graph, first.kernel, second.kernel, merged)

    def _siblings(self, first: FusionGroup, second: FusionGroup, merged: Kernel) -> str | None:
        assert second.kernel is not None
        same = fusion_profit.same_space(second.kernel, merged)
        return self._accept(first, second, merged) if same else "iteration spaces differ"

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
        self._fuse_producers()
        self._fuse_siblings()

    # ------------------------------------------------------------ vertical

    def _fuse_producers(self) -> None:
        for node in self._plan.nodes:
            tried: set[FusionGroup] = set()
            while (producer := self._next_producer(self._plan.group_of(node), tried)) is not None:
                tried.add(producer)
                self._try(producer, self._plan.group_of(node))

    def _next_producer(self, group: FusionGroup, tried: set[FusionGroup]) -> FusionGroup | None:
        if group.kernel is None:
            return None
        plan = self._plan
        options = {plan.writer[a]: plan.elements_of(a) for a in group.reads if a in plan.writer}
        options = {g: b for g, b in options.items() if g is not group and g.kernel is not None and g not in tried}
        return max(options, key=lambda g: options[g], default=None)

    # ------------------------------------------------------------ siblings

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

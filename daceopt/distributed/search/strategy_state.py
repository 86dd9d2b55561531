"""What a strategy names, as a state of the search: its kernels, with their copies and in the order of their merges, and
its buckets in the order in which they start."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from daceopt.distributed.search.baselines import apply_moves, group_moves
from daceopt.distributed.search.fusion_state import FusionProblem, FusionState, Move
from daceopt.distributed.search.training_graph import KernelGroup
from daceopt.errors import StrategyError
from daceopt.ir.fusion.clusters import Clusters

if TYPE_CHECKING:
    from daceopt.distributed.search.strategy import OperatorGroup, Strategy


def simulate(problem: FusionProblem, strategy: Strategy, groups: Sequence[Sequence[int]]) -> FusionState:
    """The state in which kernels and buckets are those of ``strategy``; ``groups``: the kernels where it has none.

    Raises StrategyError where a group is of another graph, or cannot be one kernel.
    """
    if strategy.groups:
        state = FusionState.of(problem, [_kernel_of(problem, group) for group in strategy.groups])
    else:
        state = apply_moves(problem, group_moves(problem, groups))
    gradients = {g.name: k for k, g in enumerate(problem.graph.gradients)}
    first: list[int] = []
    for bucket in strategy.buckets:
        own = [gradients[n] for n in bucket.parameters if n in gradients]
        first += own[:1]
        for k in own[1:]:
            state.apply(Move("combine", own[0], k))
    state.start_in(first)
    return state


def _kernel_of(problem: FusionProblem, group: OperatorGroup) -> KernelGroup:
    """Made by the merges that ``group`` wants, then by any that work."""
    numbers = {c.name: k for k, c in enumerate(problem.graph.computations) if c.fusible}
    missing = next((name for name in group.nodes if name not in numbers), None)
    if missing is not None:
        raise StrategyError(f"the strategy groups {missing}, which is no kernel of this step. Search it again")
    members = [numbers[name] for name in group.nodes]
    parts = _Parts(problem, members, frozenset(numbers[name] for name in group.duplicated))
    reason: str | None = None
    for places in group.merges:
        outside = not set(places) <= set(range(len(members)))
        reason = f"it has no nodes {places}" if outside else parts.join(*(members[k] for k in places))
        if reason is not None:
            raise _refusal(group, reason)
    while len(parts.clusters) > 1:
        order = parts.clusters.topological()
        for one, other in ((a, b) for k, b in enumerate(order) for a in reversed(order[:k])):
            reason = parts.join(one, other)
            if reason is None:
                break
        else:
            raise _refusal(group, str(reason))
    return parts.kernels[parts.clusters.leader(members[0])]


def _refusal(group: OperatorGroup, reason: str) -> StrategyError:
    return StrategyError(f"{' + '.join(group.nodes)} cannot be one kernel: {reason}. Search the strategy again")


class _Parts:
    """The kernels that are to be one; ``copies``: members of which there is one outside, too."""

    def __init__(self, problem: FusionProblem, members: Sequence[int], copies: frozenset[int]):
        self.problem, self.copies = problem, copies
        before = {k: problem.graph.computations[k].before for k in members}
        self.clusters = Clusters({k: [m for m in members if k in before[m]] for k in sorted(members)}, ordered=True)
        self.kernels = {k: KernelGroup.single(k) for k in members}  # by the leader of the cluster

    def join(self, one: int, other: int) -> str | None:
        """Make one kernel of those of two members, or say why not."""
        first, second = self.clusters.in_order(one, other)
        if first == second:
            return "they are one already"
        if self.clusters.obstacle(first, second) is not None:
            return "what lies between would have to run both before and after"
        head, tail = self.kernels[first], self.kernels[second]
        copied = head.members <= self.copies
        reason = self.problem.model.why_not(head, tail, copied)
        if reason is None:
            self.kernels[self.clusters.merge(first, second)] = tail.with_first(head, copied)
        return reason

"""The algorithm that aggregation and memory stitching share: rules in their order over a plan of fusion.

Algorithms 1 and 2 of APOLLO (Zhao et al., MLSys 2022, appendix A) look at all edges again until nothing changes. Here a
work list has those that a merge may have changed: the edges of what it made. Each of them is tried in vain once in each
of a few rounds, so the work grows with the edges, not with their square.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TypeAlias

from daceopt.ir.fusion import fusion_profit
from daceopt.ir.fusion.fusion_plan import FusionGroup, FusionPlan
from daceopt.ir.fusion.micro_graph import COMPUTE_BOUND, Link, links, type_of
from daceopt.ir.graph.kinds import Node
from daceopt.ir.kernel.kernel import Kernel
from daceopt.passes.aggregation_rules import AggregationRule, RuleSet
from daceopt.passes.transform import label_of

Judge: TypeAlias = Callable[[AggregationRule, FusionGroup, FusionGroup, Kernel], str | None]
Take: TypeAlias = Callable[[FusionGroup, FusionGroup], str | None]
_Pair: TypeAlias = tuple[Node, Node]  # a node of the producer and one of the consumer
_ROUNDS = 3  # in which what was tried in vain is tried again if it has grown: a larger kernel may walk memory better
_BESIDE = 4  # groups that read the same array, with which the next one is tried


class Growth:
    """Micro-graphs that grow by rules, in a plan.

    ``judge(rule, first, second, merged)`` says what speaks against a kernel that a rule allows. ``take(first, second)``
    may make one of two groups that are not both kernels: it returns None where it did, else the reason.
    """

    def __init__(
        self, plan: FusionPlan, rules: RuleSet, eligible: Collection[Node], judge: Judge, take: Take | None = None
    ):
        self.plan, graph = plan, plan.graph
        self.applied: dict[FusionGroup, tuple[str, ...]] = {}  # rules by which a group came about, in order
        self._rules, self._judge, self._take = rules, judge, take
        self._eligible = frozenset(eligible)
        kinds = {g: type_of(graph, g.members[0]) for g in plan.groups() if g.members[0] in self._eligible}
        self._types = {g: kind for g, kind in kinds.items() if g.kernel is not None or kind in COMPUTE_BOUND}
        self._readers: dict[FusionGroup, dict[str, tuple[Node, ...]]] = {}
        self._links: dict[tuple[str, Node], Link] = {}
        for group in self._types:
            node = group.members[0]
            read = links(graph, node)
            self._links.update({(array, node): link for array, link in read.items()})
            self._readers[group] = dict.fromkeys(read, (node,))
        self._said: dict[tuple[Node, str], tuple[Node, Node, str]] = {}  # a reason is told once of a consumer
        self._vain: set[tuple[str, Node]] = set()  # (array, node that reads it) that were tried in vain, by this rule

    def run(self) -> None:
        """Apply all rules, those of the first priority to all micro-graphs first."""
        for rules in self._rules.priorities():
            pairs = tuple(rule for rule in rules if not rule.siblings)
            if pairs:
                self._along_edges(pairs)
            for rule in rules:
                if rule.siblings:
                    self._beside(rule)
        apart = ((b, text) for a, b, text in self._said.values() if self.plan.group_of(a) is not self.plan.group_of(b))
        self.plan.misses.extend(apart)

    def title(self, group: FusionGroup) -> str:
        """What reports call a micro-graph: its nodes, its type, and the rules by which it came about."""
        rules = ", ".join(dict.fromkeys(self.applied[group]))
        return f"{' + '.join(map(label_of, group.members))}: {self._types[group]} by {rules}"

    # ---------------------------------------------------------------- producers and consumers

    def _along_edges(self, rules: tuple[AggregationRule, ...]) -> None:
        waiting = [pair for node in self.plan.nodes for pair in self._pairs_before(self.plan.group_of(node))]
        for _ in range(_ROUNDS):
            self._vain.clear()
            tried = self._work(rules, waiting)
            waiting = [pair for pair, groups in tried.items() if groups != self._groups(pair)]  # what has grown since
            if not waiting:
                return

    def _work(
        self, rules: tuple[AggregationRule, ...], pairs: Iterable[_Pair]
    ) -> dict[_Pair, tuple[FusionGroup, FusionGroup]]:
        """Merge what may be merged; returns the pairs that were tried in vain, and what they were then."""
        waiting, tried = deque(pairs), {}
        while waiting:
            pair = waiting.popleft()
            first, second = self._groups(pair)
            rule = self._allowing_rule(rules, first, second)
            if rule is None:
                continue
            if self._merge(rule, first, second) is None:
                joined = self.plan.group_of(pair[0])
                waiting.extendleft(reversed([*self._pairs_before(joined), *self._pairs_behind(joined)]))
                continue
            tried[pair] = first, second
            if self.plan.clusters.obstacle(*pair) is None:
                self._vain.update(self._edge(first, second))
        return tried

    def _groups(self, pair: _Pair) -> tuple[FusionGroup, FusionGroup]:
        return self.plan.group_of(pair[0]), self.plan.group_of(pair[1])

    def _pairs_before(self, group: FusionGroup) -> Iterator[_Pair]:
        """With the producers of a group, most data first."""
        plan = self.plan
        producers = [(plan.elements_of(a), k, plan.writer[a]) for k, a in enumerate(group.reads) if a in plan.writer]
        for _, _, producer in sorted(producers, key=lambda entry: (-entry[0], entry[1])):
            if producer is not group:
                yield producer.members[0], group.members[0]

    def _pairs_behind(self, group: FusionGroup) -> Iterator[_Pair]:
        return ((group.members[0], reader.members[0]) for reader in self.plan.readers_of(group))

    def _allowing_rule(
        self, rules: tuple[AggregationRule, ...], first: FusionGroup, second: FusionGroup
    ) -> AggregationRule | None:
        """The rule by which they may be one, where that was not tried before."""
        if first is second or first not in self._types or second not in self._types:
            return None
        kinds = self._types[first], self._types[second]
        if not any(rule.allows(*kinds, _PLAIN) or rule.allows(*kinds, _ANY_VIEW) for rule in rules):
            return None
        edge = self._edge(first, second)
        if not edge or self._vain.issuperset(edge):
            return None
        link = self._links[edge[0]]
        for place in edge[1:]:
            link = link.beside(self._links[place])
        return next((rule for rule in rules if rule.allows(*kinds, link)), None)

    def _edge(self, first: FusionGroup, second: FusionGroup) -> list[tuple[str, Node]]:
        """(array, node that reads it) of all that the second group reads of the first."""
        readers = self._readers[second]
        return [(array, node) for array in self.plan.edge(first, second) for node in readers.get(array, ())]

    # ---------------------------------------------------------------- siblings

    def _beside(self, rule: AggregationRule) -> None:
        """Groups that read one large array, each with the latest ones before it."""
        plan = self.plan
        for array in sorted(plan.readers, key=plan.elements_of, reverse=True):
            if fusion_profit.is_small(plan.graph.size(array)):
                continue
            before: list[Node] = []
            for node in [g.members[0] for g in plan.readers[array]]:
                if not any(self._siblings(rule, array, other, node) for other in reversed(before[-_BESIDE:])):
                    before.append(node)

    def _siblings(self, rule: AggregationRule, array: str, one: Node, other: Node) -> bool:
        """Whether both are one group now."""
        first, second = sorted((self.plan.group_of(one), self.plan.group_of(other)), key=lambda g: g.last)
        if first is second:
            return True
        if any(g not in self._types or g not in self.plan.readers[array] for g in (first, second)):
            return False
        if not rule.allows(self._types[first], self._types[second], None):
            return False
        if first in self.plan.readers_of(second):
            first, second = second, first
        return self._merge(rule, first, second) is None

    # ---------------------------------------------------------------- one step

    def _merge(self, rule: AggregationRule, first: FusionGroup, second: FusionGroup) -> str | None:
        plan = self.plan
        if first.kernel is None or second.kernel is None:
            reason = self._take(first, second) if self._take is not None else "one of both is no kernel"
        else:
            reason = plan.why_not(first, second)
            reason = reason or plan.attempt(first, second, lambda a, b, merged: self._judge(rule, a, b, merged))
        if reason is None:
            self._join(rule, first, second)
        else:
            ends = first.members[0], second.members[0]
            self._said.setdefault((ends[1], reason), (*ends, f"rule {rule.name} allows {_label(first)}, but {reason}"))
        return reason

    def _join(self, rule: AggregationRule, first: FusionGroup, second: FusionGroup) -> None:
        joined = self.plan.group_of(first.members[0])
        self._types[joined] = rule.result
        self.applied[joined] = (*self.applied.get(first, ()), *self.applied.get(second, ()), rule.name)
        both = self._readers[first], self._readers[second]
        self._readers[joined] = {a: both[0].get(a, ()) + both[1].get(a, ()) for a in {**both[0], **both[1]}}


_PLAIN, _ANY_VIEW = Link("bijective", "bijective"), Link("opaque", "opaque")


def _label(group: FusionGroup) -> str:
    return " + ".join(map(label_of, group.members[:3])) + (" + ..." if len(group.members) > 3 else "")

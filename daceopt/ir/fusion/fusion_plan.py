"""What the nodes of a graph would be if groups of them were one: the ground on which fusions are decided.

A plan changes nothing in its graph. Policies (greedy map fusion, aggregation by rules, stitching of reductions) ask it
who feeds whom, attempt merges, and hand the groups in which they end to ``emit``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TypeAlias

from daceopt.errors import Unsupported
from daceopt.ir.access.iteration import canonical
from daceopt.ir.data.provenance import label_of
from daceopt.ir.fusion.clusters import Clusters
from daceopt.ir.fusion.fusion import collapse, expand_locals, merge, shrink_locals
from daceopt.ir.fusion.merge_memory import MergeMemory
from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node
from daceopt.ir.kernel.kernel import Kernel
from daceopt.ir.kernel.kernel_node import KernelNode
from daceopt.ir.scalar.dims import hint


@dataclass(eq=False)
class FusionGroup:
    """Compute nodes that will be one.

    ``kernel``: what a fused kernel would be, with locals in the form of ``fusion.expand_locals``; None
    for a node that is no kernel and for a group around one. ``reads`` and ``writes``: arrays that nodes write, views
    seen through to what their elements come from; those that nothing outside reads have left ``reads``.
    """

    members: tuple[Node, ...]
    kernel: Kernel | None
    last: int  # topological position of the latest member
    reads: dict[str, None] = field(default_factory=dict)
    writes: dict[str, None] = field(default_factory=dict)


Accept: TypeAlias = Callable[[FusionGroup, FusionGroup, Kernel], str | None]
Attempt: TypeAlias = Callable[[FusionGroup, FusionGroup], str | None]
May: TypeAlias = Callable[[FusionGroup, FusionGroup], bool]

MOST_STAGES = 48
"""Statements of one kernel."""


class FusionPlan:
    """A partition of a graph's nodes into groups whose quotient graph stays acyclic.

    ``max_stages`` bounds the statements of one kernel. ``misses`` has (node, reason) of what could not be merged.
    """

    def __init__(
        self,
        graph: Graph,
        max_stages: int = MOST_STAGES,
        eligible: Collection[Node] | None = None,
        opened: Mapping[Node, Kernel] | None = None,
        keeps_order: bool = True,
    ):
        """``eligible``: the nodes that may join others; None: all kernels. ``opened``: library nodes that may, and what
        they are as kernels. ``keeps_order``: an order that was chosen for the graph says which may not."""
        self.graph, self.max_stages, self._keeps_order = graph, max_stages, keeps_order and graph.is_ordered
        self.misses: list[tuple[Node, str]] = []
        self._memory = MergeMemory(graph)
        self.nodes = graph.nodes()
        self._eligible, self._opened = eligible, dict(opened or {})
        self._position = {node: k for k, node in enumerate(self.nodes)}
        self._calls = list(accumulate((not isinstance(n, KernelNode) for n in self.nodes), initial=0))
        self._groups = {node: self._group(k, node) for k, node in enumerate(self.nodes)}  # by the leader of the cluster
        self.writer: dict[str, FusionGroup] = {a: g for g in self._groups.values() for a in g.writes}
        self.readers: dict[str, dict[FusionGroup, None]] = {}  # of an array: views are seen through
        for group in self._groups.values():
            for array in group.reads:
                self.readers.setdefault(array, {})[group] = None
        self.clusters = Clusters({n: [r.members[0] for r in self.readers_of(g)] for n, g in self._groups.items()})

    def _group(self, position: int, node: Node) -> FusionGroup:
        graph = self.graph
        reads = dict.fromkeys(s for n in graph.inputs_of(node) if n is not None for s in graph.sources(n))
        writes = dict.fromkeys(n for n in graph.outputs_of(node) if n is not None)
        return FusionGroup((node,), self._kernel(node), position, reads, writes)

    def _kernel(self, node: Node) -> Kernel | None:
        if node in self._opened:
            return self._opened[node]
        if not isinstance(node, KernelNode) or (self._eligible is not None and node not in self._eligible):
            return None
        try:
            return expand_locals(node.kernel)
        except Unsupported as error:
            self.misses.append((node, str(error)))
            return None

    # ---------------------------------------------------------------- questions

    def groups(self) -> list[FusionGroup]:
        """All groups, in the order of the first node that each holds."""
        return [self._groups[n] for n in self.clusters]

    def fused_groups(self) -> list[FusionGroup]:
        """The groups of several nodes."""
        return [g for g in self.groups() if len(g.members) > 1]

    def group_of(self, node: Node) -> FusionGroup:
        """The group that holds ``node`` now."""
        return self._groups[self.clusters.leader(node)]

    def readers_of(self, group: FusionGroup) -> list[FusionGroup]:
        """The other groups that read what ``group`` writes."""
        return list(dict.fromkeys(r for a in group.writes for r in self.readers.get(a, ()) if r is not group))

    def producers_of(self, group: FusionGroup) -> list[FusionGroup]:
        """The other groups that write what ``group`` reads."""
        writers = dict.fromkeys(self.writer[a] for a in group.reads if a in self.writer)
        return [g for g in writers if g is not group]

    def edge(self, first: FusionGroup, second: FusionGroup) -> list[str]:
        """The arrays that ``first`` writes and ``second`` reads."""
        return [a for a in second.reads if a in first.writes]

    def elements_of(self, array: str) -> int:
        """How many elements it has, for comparisons."""
        return hint(self.graph.size(array))

    def is_needed(self, array: str, first: FusionGroup, second: FusionGroup) -> bool:
        """Does anything but these two read ``array``, or is it to be kept?"""
        if self.graph.is_kept(array):
            return True
        return any(g is not first and g is not second for g in self.readers.get(array, ()))

    # ---------------------------------------------------------------- edits

    def why_not(self, first: FusionGroup, second: FusionGroup) -> str | None:
        """What, known without looking at their loops, keeps both from being one kernel; None where nothing does."""
        if first.kernel is None or second.kernel is None:
            return "one of both is no kernel"
        if len(first.kernel.stages) + len(second.kernel.stages) > self.max_stages:
            return f"one kernel would have more than {self.max_stages} statements"
        path = self.clusters.obstacle(first.members[0], second.members[0])
        if path is not None:
            return f"what lies between would have to run both before and after: {' -> '.join(map(label_of, path))}"
        if len(self._sides(first) | self._sides(second)) > 1:
            return "one of both is computed late, for the sake of memory"
        if self._keeps_order and self._is_moved_far(first, second):
            return "one of both would run long before it is read, at the expense of memory"
        return None

    def _is_moved_far(self, one: FusionGroup, other: FusionGroup) -> bool:
        """In the order that was chosen for the graph: does a node that is no kernel run between them, and has the later
        one to run before it, as somebody else waits for the earlier one?"""
        (_, left, a), (right, _, b) = sorted([(*self._span(g), g) for g in (one, other)], key=lambda s: s[:2])
        if right <= left or self._calls[right] == self._calls[left]:
            return False
        waiting = [self._span(reader)[0] for reader in self.readers_of(a) if reader is not b]
        return not self.edge(a, b) or any(self._calls[k] < self._calls[right] for k in waiting)

    def _span(self, group: FusionGroup) -> tuple[int, int]:
        positions = [self._position[m] for m in group.members]
        return min(positions), max(positions)

    def _sides(self, group: FusionGroup) -> set[bool]:
        return {self.graph.apart[a] for a in group.writes if a in self.graph.apart} if self.graph.apart else set()

    def attempt(
        self, first: FusionGroup, second: FusionGroup, accept: Accept | None = None, policy: str | None = None
    ) -> str | None:
        """Make one group of two that nothing keeps apart (``why_not``), where there is a kernel that does what
        ``first`` and then ``second`` do and ``accept`` has nothing against it. ``policy``: a name of ``accept`` where
        that looks at nothing but kernels, so that what it says of two it says of all that are alike.

        Returns None where they are one group now, else the reason.
        """
        assert first.kernel is not None and second.kernel is not None
        pair = first.kernel, second.kernel, lambda a: self.is_needed(a, first, second)

        def judge(kernel: Kernel) -> Kernel | str:
            reason = accept(first, second, kernel) if accept is not None else None
            return kernel if reason is None else reason

        if policy is None:
            kernel = merge(self.graph, *pair)
            kernel = judge(kernel) if isinstance(kernel, Kernel) else kernel
        else:
            kernel = self._memory.merge(*pair, policy, judge)
        if isinstance(kernel, str):
            return kernel
        self.join(first, second, kernel)
        return None

    def take_producers(self, node: Node, attempt: Attempt, may: May = lambda first, second: True) -> None:
        """Let the producers of a kernel that ``may`` join its group, one after the other, those of most data first.

        ``attempt(first, second)`` makes one group of both, or gives a text that is a miss of ``node``.
        """
        tried: set[FusionGroup] = set()
        while (group := self.group_of(node)).kernel is not None:
            untried = [p for p in self.producers_of(group) if p.kernel is not None and p not in tried and may(p, group)]
            if not untried:
                return
            tried.add(producer := max(untried, key=lambda p: max(map(self.elements_of, self.edge(p, group)))))
            reason = attempt(producer, group)
            if reason is not None:
                self.misses.append((node, reason))

    def join(self, first: FusionGroup, second: FusionGroup, kernel: Kernel | None) -> FusionGroup:
        """Make one group of both, of which ``kernel`` says what it does. Raises CyclicMerge."""
        leader = self.clusters.merge(first.members[0], second.members[0])
        joined = self._groups[leader] = FusionGroup(
            self.clusters.members(leader),
            kernel,
            max(first.last, second.last),
            {**first.reads, **second.reads},
            {**first.writes, **second.writes},
        )
        for array in joined.writes:
            self.writer[array] = joined
        for array in joined.reads:
            readers = self.readers[array]
            readers.pop(first, None)
            readers.pop(second, None)
            readers[joined] = None
        for array in [a for a in joined.writes if not self._is_read_outside(a, joined)]:
            joined.reads.pop(array, None)
        return joined

    def _is_read_outside(self, array: str, group: FusionGroup) -> bool:
        if self.graph.is_kept(array):
            return True
        self.readers.get(array, {}).pop(group, None)
        return bool(self.readers.get(array))


def emit(graph: Graph, members: Iterable[Node], kernel: Kernel) -> KernelNode:
    """Put ``kernel``, as a plan has it, in the place of ``members``; returns its node."""
    graph.take_out(members)
    return graph.add_kernel(plan(kernel))


def plan(kernel: Kernel) -> Kernel:
    """``kernel``, as a plan has it, in the form in which it is emitted."""
    kernel = canonical(kernel)
    return collapse(kernel) or shrink_locals(kernel)

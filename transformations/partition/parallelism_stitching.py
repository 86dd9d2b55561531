"""Run independent kernels side by side in one parallel loop."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import sympy

from daceopt.cost.kernel_time import BLOCKS, KernelTimes
from daceopt.cost.limits import limits
from daceopt.errors import IllegalSchedule, Unsupported
from daceopt.ir.fusion.clusters import Clusters
from daceopt.ir.fusion.stitching import cut, side_by_side
from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node
from daceopt.ir.kernel.kernel import Kernel
from daceopt.ir.kernel.kernel_node import KernelNode
from daceopt.passes.transform import NearMiss, Site, Transformation, label_of
from daceopt.transformations.partition._branches import BranchGraph, Candidates


@dataclass(frozen=True)
class ParallelismStitching(Transformation):
    """Put kernels of independent branches side by side where the cost model says that this gains.

    before:  for i < 400: a[i] = f(x[i])        for j < 700: b[j] = g(y[j])      (one after the other, a core each)
    after:   parallel for t < 11: { if t < 4: ... 100 elements of a      if 4 <= t: ... 100 elements of b }

    Zhao et al., APOLLO, section 4.3 and algorithm 3: branches of multi-head and of multi-tail nodes, then of
    independent sub-graphs under a virtual tail or head, at most ``branches`` of these at once. Of each branch one
    kernel at a time, the dearest first; fewer of them while there is no gain. Library calls are compute-bound and stay
    out. ``blocks``: for each core, of which the one loop consists. ``least``: the share of
    the kernels' time that must be gained, for blocks may run slower than the loops that they are cut from.
    """

    level: ClassVar[str] = "hardware"
    sites_are_independent: ClassVar[bool] = True
    branches: int = 7
    blocks: int = BLOCKS
    least: float = 0.15

    def match(self, graph: Graph) -> Iterator[Site | NearMiss]:
        plan = _Plan(graph, self)
        plan.run()
        for members, kernel in plan.stitched:
            yield Site(graph, members, {"kernel": kernel})
        yield from plan.misses

    def apply(self, site: Site) -> None:
        graph = site.graph
        graph.take_out(site.nodes)
        graph.add_kernel(site["kernel"], as_it_is=True)


class _Plan:
    def __init__(self, graph: Graph, options: ParallelismStitching):
        self._graph, self._options = graph, options
        self._nodes = graph.nodes()
        self._times = KernelTimes(graph)
        self._visited: set[Node] = set()
        self._blocks: dict[Node, float] = {}
        self.stitched: list[tuple[tuple[Node, ...], Kernel]] = []
        self.misses: list[NearMiss] = []

    @cached_property
    def _clusters(self) -> Clusters[Node]:
        return Clusters(self._successors)

    @cached_property
    def _successors(self) -> dict[Node, list[Node]]:
        after: dict[Node, list[Node]] = {n: [] for n in self._nodes}
        for node in self._nodes:
            names = dict.fromkeys(n for n in self._graph.inputs_of(node) if n is not None)
            for source in dict.fromkeys(p for name in names for p in self._graph.producers(name)):
                after[source].append(node)
        return after

    def run(self) -> None:
        if self._graph.options.target != "cpu" or self._times.machine.cores < 2:
            return
        branches = BranchGraph(self._successors, self._is_eligible)
        for candidates in branches.common_node_sets():
            self._stitch(candidates)
        while True:
            before = len(self._visited)
            for candidates in branches.independent_sets(self._options.branches, self._visited):
                self._stitch(candidates)
            if len(self._visited) == before:
                return

    def _is_eligible(self, node: Node) -> bool:
        if not isinstance(node, KernelNode):
            return False
        return not node.kernel.is_tiled

    def _stitch(self, candidates: Candidates[Node]) -> None:
        """Algorithm 3 on one set of branches: again and again one kernel of each."""
        branches = [[n for n in branch if n not in self._visited] for branch in candidates.branches]
        while sum(map(bool, branches)) > 1:
            group = sorted((branch.pop(0) for branch in branches if branch), key=self._times.seconds, reverse=True)
            self._compose(group)
            self._visited.update(group)

    def _compose(self, group: Sequence[Node]) -> None:
        """As many kernels side by side as gain, from the dearest on; then those that are left."""
        first, count = 0, len(group)
        while first < len(group) and count > 1:
            if self._try(group[first : first + count]):
                first += count
                count = len(group) - first
            else:
                count -= 1
                if count == 1 and first < len(group) - 1:
                    first += 1
                    count = len(group) - first

    def _try(self, members: Sequence[Node]) -> bool:
        works = [self._times.work(n) for n in members]
        spent = sum(w.seconds(self._times.machine) for w in works)
        if spent <= self._times.machine.region:
            return False
        deal = self._times.side_by_side(works, [self._most(n) for n in members], self._options.blocks)
        if self._times.gain(works, deal) <= self._options.least * spent or not self._is_independent(members):
            return False
        try:
            kernels = [members[k].kernel for k in deal.order]
            blocks = [cut(kernel, count) for kernel, count in zip(kernels, deal.blocks)]
            kernel = side_by_side(self._graph, kernels, blocks, self._worthwhile(members))
        except (IllegalSchedule, Unsupported) as error:
            self.misses.append(NearMiss(members[0], str(error)))
            return False
        for node in members[1:]:
            self._clusters.merge(members[0], node)
        self.stitched.append((tuple(members), kernel))
        return True

    def _most(self, node: Node) -> float:
        """How many blocks a kernel has at most."""
        if node not in self._blocks:
            self._blocks[node] = self._times.number(cut(node.kernel, 1 << 30).extent)
        return self._blocks[node]

    def _is_independent(self, members: Sequence[Node]) -> bool:
        """No path from one to another, through kernels that are side by side with others by now."""
        pairs = ((a, b) for k, b in enumerate(members) for a in members[:k])
        path = next((p for a, b in pairs if (p := self._path(a, b))), None)
        if path is not None:
            self.misses.append(NearMiss(members[0], f"what runs side by side depends on each other: {path}"))
        return path is None

    def _path(self, a: Node, b: Node) -> str:
        clusters = self._clusters
        direct = clusters.leader(b) in clusters.successors(a) or clusters.leader(a) in clusters.successors(b)
        path = [a, b] if direct else clusters.obstacle(a, b)
        return " -> ".join(map(label_of, path or ()))

    def _worthwhile(self, members: Sequence[Node]) -> Any:
        """Where sizes are open: the work from which on threads are worth their start."""
        work = sum(s for n in members for s in self._move(n))
        if not getattr(work, "free_symbols", None):
            return None
        return sympy.Ge(work, 4 * limits().worthwhile, evaluate=False)

    def _move(self, node: Node) -> Iterator[Node]:
        names = (*self._graph.inputs_of(node), *self._graph.outputs_of(node))
        for name in dict.fromkeys(n for n in names if n is not None):
            yield self._graph.size(name) * self._graph.dtype(name).bytes

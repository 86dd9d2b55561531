"""The kernels that sets of a graph's kernels could be: grown one kernel at a time, each set merged once.

Rausch et al., DaCeML, section 5.2: fusible subgraphs are enumerated, and pruned by path constraints.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate

from daceopt.cost.kernel_time import KernelTimes
from daceopt.cost.planned_kernel import kernel_bytes, kernel_seconds
from daceopt.cost.work import kernel_flops
from daceopt.ir.fusion import fusion_profit
from daceopt.ir.fusion.fusion import merge
from daceopt.ir.fusion.fusion_plan import MOST_STAGES, FusionPlan
from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node
from daceopt.ir.kernel.kernel import Kernel
from daceopt.ir.kernel.kernel_node import KernelNode
from daceopt.transformations.local._fusion_signature import RegionSignature
from daceopt.transformations.local._greedy_fusion import GreedyFusion


@dataclass(frozen=True, eq=False)
class FusionCandidate:
    """Kernels of a graph that can be one: what a scoring function is given.

    ``kernel``: what they would be, locals in the form of ``fusion.expand_locals``. ``mask``: bit k is
    set for the graph's node k, and ``order`` has them as they joined, where that is known. ``times`` has the numbers
    that sizes stand for.
    """

    graph: Graph
    mask: int
    members: tuple[Node, ...]
    kernel: Kernel
    times: KernelTimes
    order: tuple[int, ...] = ()

    @property
    def bytes(self) -> float:
        """Read and written; an open size counts as ``ir.scalar.dims.HINT``."""
        return kernel_bytes(self.graph, self.kernel, self.times.number)

    @property
    def operations(self) -> float:
        """As ``cost.work`` weighs them."""
        return self.times.number(kernel_flops(self.kernel))

    @property
    def seconds(self) -> float:
        """By its bytes and operations alone, at the rates of this machine."""
        return kernel_seconds(self.times.machine, self.bytes, self.operations)


class FusionSpace:
    """Which kernels of ``graph`` can be one. ``profitable`` leaves out what ``ir.fusion.fusion_profit`` says would be
    slower. ``misses`` has (node, reason) of nodes that take no part.
    """

    def __init__(self, graph: Graph, profitable: bool):
        self.graph, self._profitable = graph, profitable
        self._times = KernelTimes(graph)
        plan = FusionPlan(graph)
        self._nodes, self.misses = plan.nodes, plan.misses
        self._groups = groups = [plan.group_of(node) for node in plan.nodes]
        position = {g: k for k, g in enumerate(groups)}
        self._readers = {a: _mask(position[g] for g in readers) for a, readers in plan.readers.items()}
        self._next = [_mask(position[r] for r in plan.readers_of(g)) for g in groups]
        self._after, self._before = self._reachability()
        self._calls = list(accumulate((not isinstance(n, KernelNode) for n in plan.nodes), initial=0))
        self.single = {
            k: FusionCandidate(graph, 1 << k, (plan.nodes[k],), g.kernel, self._times, (k,))
            for k, g in enumerate(groups)
            if g.kernel is not None
        }
        self._beside = self._adjacency()
        self._merged: dict[int, FusionCandidate | str] = {}
        self._plan = plan

    def _reachability(self) -> tuple[list[int], list[int]]:
        after, before = [0] * len(self._nodes), [0] * len(self._nodes)
        for k in reversed(range(len(self._nodes))):
            for reader in bits(self._next[k]):
                after[k] |= 1 << reader | after[reader]
        for k in range(len(self._nodes)):
            for reader in bits(self._next[k]):
                before[reader] |= 1 << k | before[k]
        return after, before

    def _adjacency(self) -> dict[int, int]:
        """Kernels that a kernel may be fused with: those that it feeds, that feed it, or that read a large array with
        it."""
        kernels = _mask(self.single)
        beside = {k: self._next[k] & kernels for k in self.single}
        for k in self.single:
            for reader in bits(beside[k]):
                beside[reader] |= 1 << k
        for array, readers in self._readers.items():
            size = self.graph.size(array)
            if fusion_profit.is_small(size):
                continue
            for k in bits(readers & kernels):
                beside[k] |= readers & kernels & ~(1 << k)
        return beside

    # ---------------------------------------------------------------- questions

    def regions(self) -> list[int]:
        """Sets of kernels between which no two can be fused, in the order of their first kernels."""
        rest, regions = _mask(self.single), []
        while rest:
            region, border = 0, rest & -rest
            while border:
                region |= border
                border = self.beside(region)
            regions.append(region)
            rest &= ~region
        return regions

    def signature(self, region: int) -> str | None:
        """Equal texts: exploring the regions comes to the same. None where it also depends on what is around."""
        graph, positions = self.graph, list(bits(region))
        if graph.is_ordered or graph.apart or any(map(graph.is_part, self._arrays(region))):
            return None
        place = {k: n for n, k in enumerate(positions)}
        paths = [[place[k] for k in bits(self._after[p] & region)] for p in positions]
        text = RegionSignature(graph, lambda array: self._is_needed(array, region))
        return text.of([self.single[k].kernel for k in positions], paths)

    def _arrays(self, mask: int) -> Iterator[str]:
        for k in bits(mask):
            yield from self._groups[k].reads
            yield from self._groups[k].writes

    def beside(self, mask: int) -> int:
        """The kernels outside of a set that may be fused with one of it."""
        near = 0
        for k in bits(mask):
            near |= self._beside[k]
        return near & ~mask

    def greedy(self) -> list[FusionCandidate]:
        """What greedy fusion would make. Ends the plan that the space was read from: to be asked once."""
        GreedyFusion(self._plan).run()
        position = {node: k for k, node in enumerate(self._nodes)}
        candidates = []
        for group in self._plan.fused_groups():
            assert group.kernel is not None
            places = sorted(position[node] for node in group.members)
            members = tuple(self._nodes[k] for k in places)
            candidate = FusionCandidate(self.graph, _mask(places), members, group.kernel, self._times)
            self._merged[candidate.mask] = candidate
            candidates.append(candidate)
        return candidates

    def waiting(self, chosen: Iterable[FusionCandidate]) -> dict[int, set[int]]:
        """Group -> the groups whose results it reads, where ``chosen`` are one each; by their lowest node."""
        leader = {k: k for k in range(len(self._nodes))}
        for candidate in chosen:
            leader |= dict.fromkeys(bits(candidate.mask), min(bits(candidate.mask)))
        positions: dict[int, set[int]] = {}
        for k, readers in enumerate(self._next):
            positions.setdefault(leader[k], set())
            for reader in bits(readers):
                if leader[reader] != leader[k]:
                    positions.setdefault(leader[reader], set()).add(leader[k])
        return positions

    # ---------------------------------------------------------------- growth

    def is_known(self, mask: int) -> bool:
        """Was this set of kernels tried already?"""
        return mask in self._merged

    def candidate_of(self, mask: int) -> FusionCandidate | None:
        """What this set of kernels was found to be."""
        merged = self._merged.get(mask)
        return merged if isinstance(merged, FusionCandidate) else None

    def along(self, order: Iterable[int]) -> FusionCandidate | None:
        """The candidate that grows by these kernels in turn; None where it does not."""
        first, *others = order
        candidate: FusionCandidate | str = self.single[first]
        for k in others:
            candidate = self.grow(candidate, k) if isinstance(candidate, FusionCandidate) else candidate
        return candidate if isinstance(candidate, FusionCandidate) else None

    def grow(self, candidate: FusionCandidate, k: int) -> FusionCandidate | str:
        """``candidate`` with kernel ``k`` as well, or why they are no one kernel."""
        mask = candidate.mask | 1 << k
        if mask not in self._merged:
            self._merged[mask] = self._why_not(mask) or self._merge(candidate, k, mask)
        return self._merged[mask]

    def _why_not(self, mask: int) -> str | None:
        """The path constraints: what is known without looking at loops."""
        after = before = 0
        for k in bits(mask):
            after, before = after | self._after[k], before | self._before[k]
        if after & before & ~mask:
            return "what lies between would have to run both before and after"
        apart = self.graph.apart
        if apart and len({apart[a] for k in bits(mask) for a in self._groups[k].writes if a in apart}) > 1:
            return "some are computed late, for the sake of memory"
        first, *_, last = bits(mask)
        if self.graph.is_ordered and self._calls[first] != self._calls[last]:
            return "a library call runs between them in the order that was chosen"
        return None

    def _merge(self, candidate: FusionCandidate, k: int, mask: int) -> FusionCandidate | str:
        other = self.single[k]
        if len(candidate.kernel.stages) + len(other.kernel.stages) > MOST_STAGES:
            return f"one kernel would have more than {MOST_STAGES} statements"
        feeds, fed = self._feeds(candidate.mask, 1 << k), self._feeds(1 << k, candidate.mask)
        late = fed or (not feeds and k < min(bits(candidate.mask)))
        first, second = (other.kernel, candidate.kernel) if late else (candidate.kernel, other.kernel)
        merged = merge(self.graph, first, second, lambda array: self._is_needed(array, mask))
        if isinstance(merged, str):
            return merged
        if not feeds and not fed and not fusion_profit.same_space(second, merged):
            return "iteration spaces differ"
        reason = fusion_profit.why_slower(self.graph, first, second, merged) if self._profitable else None
        if reason is not None:
            return reason
        members = tuple(self._nodes[p] for p in bits(mask))
        return FusionCandidate(self.graph, mask, members, merged, self._times, (*candidate.order, k))

    def _feeds(self, first: int, second: int) -> bool:
        return any(self._next[k] & second for k in bits(first))

    def _is_needed(self, array: str, mask: int) -> bool:
        """Does anything but the nodes of ``mask`` read ``array``, or is it to be kept?"""
        sources = self.graph.sources(array)
        return any(self.graph.is_kept(a) or self._readers.get(a, 0) & ~mask for a in sources)


def bits(mask: int) -> Iterator[int]:
    """The positions that are set, lowest first."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def _mask(positions: Iterable[int]) -> int:
    bits = 0
    for k in positions:
        bits |= 1 << k
    return bits

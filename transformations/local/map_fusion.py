"""Fuse element-wise, broadcast and reduction kernels over equal, permuted or split iteration spaces."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod
from typing import Any, ClassVar

from dace import nodes

from daceopt.errors import Unsupported
from daceopt.ir.clusters import Clusters
from daceopt.ir.dataflow import address
from daceopt.ir.fusion import collapse, expand_locals, merge, shrink_locals
from daceopt.ir.graph import Graph
from daceopt.ir.iteration import canonical
from daceopt.ir.kernel import Kernel
from daceopt.passes.transform import NearMiss, Site, Transformation

SMALL = 16384  # elements; below this a kernel runs on one thread and needs no parallel loop


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
        plan = _Plan(graph, self.max_stages)
        plan.fuse_producers()
        plan.fuse_siblings()
        for group in plan.fused():
            yield Site(graph, tuple(group.members), {"kernel": group.kernel})
        yield from plan.misses

    def apply(self, site: Site) -> None:
        site.graph.join_origins(site.nodes)
        for node in site.nodes:
            site.graph.remove(node)
        kernel = canonical(site["kernel"])
        (collapse(kernel) or shrink_locals(kernel)).emit(site.graph)


@dataclass(eq=False)
class _Group:
    """Compute nodes that will be one: a fused kernel, or a single node that cannot fuse (``kernel`` is None)."""

    members: tuple[Any, ...]
    kernel: Kernel | None
    last: int  # topological position of the latest member
    reads: dict[str, None] = field(default_factory=dict)  # root buffers
    writes: dict[str, None] = field(default_factory=dict)


class _Plan:
    def __init__(self, graph: Graph, max_stages: int):
        self.graph, self.max_stages = graph, max_stages
        self.misses: list[NearMiss] = []
        self.nodes = graph.nodes()
        self.groups = {node: self._group(k, node) for k, node in enumerate(self.nodes)}  # by the leader of the cluster
        self.writer: dict[str, _Group] = {a: g for g in self.groups.values() for a in g.writes}
        self.readers: dict[str, dict[_Group, None]] = {}
        for group in self.groups.values():
            for array in group.reads:
                self.readers.setdefault(array, {})[group] = None
        self.clusters = Clusters({n: [r.members[0] for r in self._readers_of(g)] for n, g in self.groups.items()})

    def _group(self, position: int, node: Any) -> _Group:
        graph = self.graph
        reads = dict.fromkeys(s for n in graph.inputs_of(node) if n is not None for s in graph.sources(n))
        writes = dict.fromkeys(n for n in graph.outputs_of(node) if n is not None)
        return _Group((node,), self._kernel(node), position, reads, writes)

    def _kernel(self, node: Any) -> Kernel | None:
        if not isinstance(node, nodes.MapEntry):
            return None
        try:
            return expand_locals(Kernel.extract(self.graph, node))
        except Unsupported as error:
            self.misses.append(NearMiss(node, str(error)))
            return None

    def fused(self) -> list[_Group]:
        return [self.groups[n] for n in self.clusters if len(self.groups[n].members) > 1]

    def _group_of(self, node: Any) -> _Group:
        return self.groups[self.clusters.leader(node)]

    def _readers_of(self, group: _Group) -> list[_Group]:
        return list(dict.fromkeys(r for a in group.writes for r in self.readers.get(a, ()) if r is not group))

    # ------------------------------------------------------------ vertical

    def fuse_producers(self) -> None:
        for node in self.nodes:
            tried: set[_Group] = set()
            while (pair := self._next_producer(self._group_of(node), tried)) is not None:
                tried.add(pair)
                self._try(pair, self._group_of(node))

    def _next_producer(self, group: _Group, tried: set[_Group]) -> _Group | None:
        if group.kernel is None:
            return None
        options = {self.writer[a]: self._bytes(a) for a in group.reads if a in self.writer}
        options = {g: b for g, b in options.items() if g is not group and g.kernel is not None and g not in tried}
        return max(options, key=lambda g: options[g], default=None)

    def _bytes(self, array: str) -> float:
        size = self.graph.size(array)
        return float(size) if isinstance(size, int) else 1e9

    # ------------------------------------------------------------ siblings

    def fuse_siblings(self) -> None:
        for array in sorted(self.readers, key=self._bytes, reverse=True):
            if self._bytes(array) <= SMALL:
                break
            groups = [g for g in self.readers[array] if g.kernel is not None]
            for k, second in enumerate(groups):
                for first in groups[:k]:
                    if first in self.readers[array] and second in self.readers[array] and first is not second:
                        early, late = sorted((first, second), key=lambda g: g.last)
                        pair = (late, early) if early in self._readers_of(late) else (early, late)
                        self._try(*pair, siblings=True)

    # ------------------------------------------------------------ one step

    def _try(self, first: _Group, second: _Group, siblings: bool = False) -> None:
        assert first.kernel is not None and second.kernel is not None
        if len(first.kernel.stages) + len(second.kernel.stages) > self.max_stages:
            return
        if self.clusters.obstacle(first.members[0], second.members[0]):
            return
        result = merge(self.graph, first.kernel, second.kernel, lambda a: self._needed(a, first, second))
        if isinstance(result, Kernel):
            same_space = len(result.outer) == len(result.extents) or result.outer == second.kernel.outer
            reason = "iteration spaces differ" if siblings and not same_space else None
            reason = reason or _lost_loops(first.kernel, second.kernel, result) or _unprofitable(self.graph, result)
            if reason is None:
                self._join(first, second, result)
                return
            result = reason
        self.misses.append(NearMiss(second.members[0], result))

    def _needed(self, array: str, first: _Group, second: _Group) -> bool:
        if self.graph.is_kept(array):
            return True
        return any(g is not first and g is not second for g in self.readers.get(array, ()))

    def _join(self, first: _Group, second: _Group, kernel: Kernel) -> None:
        leader = self.clusters.merge(first.members[0], second.members[0])
        joined = self.groups[leader] = _Group(
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
        for array in [a for a in joined.writes if not self._needed_by(a, joined)]:
            joined.reads.pop(array, None)

    def _needed_by(self, array: str, group: _Group) -> bool:
        if self.graph.is_kept(array):
            return True
        self.readers.get(array, {}).pop(group, None)
        return bool(self.readers.get(array))


def _lost_loops(first: Kernel, second: Kernel, merged: Kernel) -> str | None:
    """A small map (a vector per row, say) must not take its reader's parallel loops away; a reduction may."""
    before = second.outer or tuple(second.extents)
    small = all(set(s.params) == set(first.extents) for s in first.stages) and not any(a.wcr for a in first.writes())
    if small and len(merged.outer) < len(before) and len(first.extents) < len(second.extents):
        return f"{first.label} runs over fewer parameters than {second.label}"
    return None


def _unprofitable(graph: Graph, kernel: Kernel) -> str | None:
    """Why the merged loops would run slower than the separate ones, or None."""
    inner = [p for p in kernel.extents if p not in kernel.outer]
    if not inner:
        return None
    total, shared = prod(kernel.extents.values()), prod(kernel.extents[p] for p in kernel.outer)
    if isinstance(shared, int) and shared < 4 and not (isinstance(total, int) and total <= SMALL):
        return f"only {shared} parallel iterations would remain"
    across, along = 0, 0
    for stage in kernel.stages:
        if all(p in kernel.outer for p in stage.params):
            continue
        for access in [*stage.reads.values(), *stage.writes.values()]:
            where = None if access.array in kernel.locals else address(graph, access)
            if where is None or all(p in kernel.outer for p, _ in where.terms):
                continue
            unit = next((p for p, c in where.terms if c == 1), None)
            across += unit in kernel.outer
            along += unit is not None and unit not in kernel.outer
    return "the inner loops would walk memory with a stride" if across > along else None

"""Which nodes run depth first, and on how many items at a time: what a cache holds of their arrays, or how much less
memory they take, against what each instance reads again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from daceopt.cost.limits import limits
from daceopt.ir.fusion.clusters import Clusters
from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node
from daceopt.ir.scalar import types
from daceopt.ir.scalar.dims import hint
from daceopt.splits.along import NodeCut, SplitAxis
from daceopt.splits.rolling import why_not_together

_CALL = 64 << 10  # bytes that memory moves while a kernel starts: some 6 us at 10 GB/s
_WORTH = 3  # bytes of memory that must get free for a byte of weights that is read again
_ROUNDS = 4  # what gains nothing by itself may once its neighbours have grown
_CARRIED = 3  # as large as a sum: that before an instance, its own, that behind it
_ADDED = 4  # times an instance moves a sum: its own is written and read, that before it read, that behind it written
AIMS = ("cache", "memory")


@dataclass(frozen=True)
class CacheBudget:
    """What an instance may take: ``cache`` bytes that are near to all cores together."""

    cache: int

    @classmethod
    def of(cls, cache: int | None) -> CacheBudget:
        """``cache`` bytes, or those near to all cores of this machine."""
        return cls(cache or limits().together)


@dataclass(frozen=True)
class InstanceGroup:
    """Nodes in their order, and the items of one instance of them."""

    members: tuple[Node, ...]
    items: int


def groups(
    graph: Graph,
    axis: SplitAxis,
    cuts: Mapping[Node, NodeCut],
    budget: CacheBudget,
    items: int | None = None,
    aim: str = "cache",
) -> list[InstanceGroup]:
    """Sub-graphs that gain by running in instances; ``items``: of each, where that is settled already.

    Nodes are merged along the largest arrays first, as long as the gain grows: bytes that memory need not move because
    a cache holds an instance's, or, with the ``aim`` of memory, bytes that it need not hold.
    """
    return _Growth(graph, axis, cuts, budget, items, aim).run()


@dataclass(frozen=True)
class _Stream:
    """An array that members write: bytes per item, and who reads it."""

    bytes: int
    writer: Node
    readers: tuple[Node, ...]
    kept: bool


class _Growth:
    def __init__(
        self,
        graph: Graph,
        axis: SplitAxis,
        cuts: Mapping[Node, NodeCut],
        budget: CacheBudget,
        items: int | None,
        aim: str,
    ):
        self._graph, self._axis, self._cuts, self._budget = graph, axis, cuts, budget
        self._aim = aim
        self._count = hint(axis.items)
        self._settled = items if items and items < self._count else None
        self._widths = [] if items else [w for w in _widths(self._count) if w < self._count]
        self._order = {node: k for k, node in enumerate(graph.nodes())}
        self._streams = list(self._all_streams())
        self._touched: dict[Node, list[_Stream]] = {node: [] for node in cuts}
        for stream in self._streams:
            for node in {stream.writer, *stream.readers} & cuts.keys():
                self._touched[node].append(stream)
        self._weights = {node: self._whole_bytes(node) for node in cuts}
        self._sums = {node: sum(map(self._bytes, cut.summed)) for node, cut in cuts.items()}
        self._fresh = {node: self._given_bytes(node) for node in cuts}
        self._gains: dict[frozenset[Node], tuple[float, int]] = {}

    def run(self) -> list[InstanceGroup]:
        clusters = Clusters(self._successors())
        self._join_lookers(clusters)
        streams = sorted(self._streams, key=lambda s: -s.bytes)
        for _ in range(_ROUNDS):
            before = len(clusters)
            for stream in streams:
                for reader in (r for r in stream.readers if r in self._cuts):
                    if clusters.leader(reader) != clusters.leader(stream.writer):
                        self._merge(clusters, stream.writer, reader)
            if len(clusters) == before:
                break
        groups = []
        for leader in clusters:
            members = self._sort(clusters.members(leader))
            if all(m in self._cuts for m in members):
                gain, items = self._gain(members)
                groups += [InstanceGroup(members, items)] if gain > 0 and len(members) > 1 else []
        return groups

    def _join_lookers(self, clusters: Clusters[Node]) -> None:
        """What only looks at an array is with what writes it: alone it would keep all of it from ending inside."""
        for node, cut in self._cuts.items():
            if not cut.summed and not any(n in self._axis.dims for n in self._graph.outputs_of(node)):
                writers = list({w for name in cut.sliced for w in self._graph.producers(name)})
                if len(writers) == 1 and writers[0] in self._cuts:
                    clusters.merge(writers[0], node)

    def _sort(self, members: Sequence[Node]) -> tuple[Node, ...]:
        return tuple(sorted(members, key=self._order.__getitem__))

    def _merge(self, clusters: Clusters[Node], writer: Node, reader: Node) -> None:
        """Make one cluster of two and of all that lies between them, if that gains."""
        leaders = _between(clusters, writer, reader)
        parts = [self._sort(clusters.members(leader)) for leader in leaders]
        if any(member not in self._cuts for part in parts for member in part):
            return
        together = self._sort([member for part in parts for member in part])
        if self._gain(together)[0] <= sum(self._gain(part)[0] for part in parts):
            return
        if why_not_together(self._graph, together, self._cuts) is None:
            _contract(clusters, leaders)

    def _successors(self) -> dict[Node, list[Node]]:
        graph = self._graph
        successors: dict[Node, list[Node]] = {node: [] for node in self._order}
        for node in self._order:
            for source in {s for n in graph.inputs_of(node) if n is not None for s in graph.producers(n)}:
                successors[source].append(node)
        return successors

    # ---------------------------------------------------------------- bytes

    def _bytes(self, name: str) -> int:
        return hint(self._graph.size(name)) * types.itemsize(self._graph.dtype(name))

    def _per_item(self, name: str) -> int:
        items = hint(self._axis.items)
        return -(-self._bytes(name) // max(items, 1))

    def _all_streams(self) -> Iterator[_Stream]:
        graph = self._graph
        for node in self._cuts:
            for name in (n for n in graph.outputs_of(node) if n is not None and n in self._axis.dims):
                readers = tuple(sorted(set(graph.all_consumers(name)), key=self._order.__getitem__))
                yield _Stream(self._per_item(name), node, readers, graph.is_kept(name))

    def _whole_bytes(self, node: Node) -> int:
        """What each instance of ``node`` reads as a whole: weights."""
        whole = {n for n in self._graph.inputs_of(node) if n is not None and n not in self._cuts[node].sliced}
        return sum(self._bytes(n) for n in whole)

    def _given_bytes(self, node: Node) -> int:
        """Bytes per item of what is cut with ``node`` and comes from elsewhere than a member."""
        graph, cut = self._graph, self._cuts[node]
        return sum(self._per_item(n) for n in cut.sliced if not any(p in self._cuts for p in graph.producers(n)))

    # ---------------------------------------------------------------- gains

    def _gain(self, members: tuple[Node, ...]) -> tuple[float, int]:
        """Bytes that memory does not move because ``members`` run in instances, and the items of each."""
        if self._settled is not None:
            return len(members) - 0.5, self._settled
        key = frozenset(members)
        if key not in self._gains:
            facts = _Facts(self, members)
            gain = facts.bytes_not_held if self._aim == "memory" else facts.bytes_not_moved
            self._gains[key] = max(((gain(w), w) for w in self._widths), default=(0, self._count))
        return self._gains[key]


def _between(clusters: Clusters[Node], first: Node, last: Node) -> list[Node]:
    """The leaders of two clusters, of which one is reached from the other, and of those on paths between them."""
    after = _reachable(clusters.successors, clusters.leader(first))
    before = _reachable(clusters.predecessors, clusters.leader(last))
    return [leader for leader in after if leader in before]


def _reachable(step: Callable[[Node], Sequence[Node]], start: Node) -> dict[Node, None]:
    reached = {start: None}
    waiting = [start]
    for leader in waiting:
        fresh = [n for n in step(leader) if n not in reached]
        reached |= dict.fromkeys(fresh)
        waiting += fresh
    return reached


def _contract(clusters: Clusters[Node], leaders: Sequence[Node]) -> None:
    """One cluster of a convex set of them: of two neighbours at a time that no path joins around."""
    while len(leading := list(dict.fromkeys(map(clusters.leader, leaders)))) > 1:
        pairs = ((a, b) for a in leading for b in clusters.successors(a) if b in leading)
        clusters.merge(*next((a, b) for a, b in pairs if clusters.obstacle(a, b) is None))


class _Facts:
    """What one set of nodes moves and holds."""

    def __init__(self, growth: _Growth, members: tuple[Node, ...]):
        self._growth, self._members, inside = growth, members, set(members)
        self._inner = [s for m in members for s in growth._touched[m] if s.writer is m]
        self._inside = inside
        self._sums = sum(growth._sums[m] for m in members)
        self._weights = sum(growth._weights[m] for m in members) + _ADDED * self._sums

    @cached_property
    def _most(self) -> int:
        """Bytes per item that are alive together at most."""
        place = {m: k for k, m in enumerate(self._members)}
        change = [0] * (len(self._members) + 1)
        for stream in {s for m in self._members for s in self._growth._touched[m]}:
            users = [place[n] for n in (stream.writer, *stream.readers) if n in place]
            change[min(users)] += stream.bytes
            change[max(users) + 1] -= stream.bytes
        most = alive = 0
        for k, member in enumerate(self._members):
            alive += change[k]
            most = max(most, alive + self._growth._fresh[member])
        return most

    @cached_property
    def _saved(self) -> int:
        """Bytes that stay near if an instance does, and did not before."""
        count, cache = self._growth._count, self._growth._budget.cache
        total = 0
        for stream in self._inner:
            near = sum(r in self._inside for r in stream.readers)
            if stream.bytes * count > cache and near:
                ends_here = not stream.kept and near == len(stream.readers)
                total += stream.bytes * count * (near + ends_here)
        return total

    def bytes_not_moved(self, width: int) -> float:
        """With ``width`` items at a time: what stays near, without what is read again and calls."""
        growth = self._growth
        if self._most * width > growth._budget.cache:
            return 0
        trips = -(-growth._count // width)
        return self._saved - (trips - 1) * self._weights - trips * len(self._members) * _CALL

    def bytes_not_held(self, width: int) -> float:
        """With ``width`` items at a time: what arrays that end inside need no longer, without what sums need."""
        growth = self._growth
        trips = -(-growth._count // width)
        ends = (s for s in self._inner if not s.kept and all(r in self._inside for r in s.readers))
        held = sum(s.bytes for s in ends) * (growth._count - width)
        moved = (trips - 1) * self._weights + trips * len(self._members) * _CALL
        return held - _CARRIED * self._sums - _WORTH * moved


def _widths(count: int) -> list[int]:
    """Items of an instance to choose from: divisors, and powers of two where there are hardly any."""
    divisors = [w for w in range(1, min(count, 4096)) if count % w == 0]
    return divisors if len(divisors) > 2 else [1 << k for k in range(count.bit_length()) if 1 << k < count]

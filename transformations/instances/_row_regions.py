"""Which nodes run on some rows of an image at a time: what stays near of their arrays, against halos computed again.

A region is an interval of the nodes in their order, so nothing lies between its instances. Dynamic programming finds
the intervals, and into how many instances each is cut, of the largest gain together. Gains are bytes that memory need
not move; what an instance computes again counts as the bytes that memory moves meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from daceopt.cost.limits import limits
from daceopt.cost.work import known_flops
from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node
from daceopt.ir.nodes.library import Convolution, Pool
from daceopt.ir.scalar import types
from daceopt.splits import CannotSplit
from daceopt.transformations.instances._cuts import Cut, cut_along, cuts_of
from daceopt.transformations.instances._pieces import Member, PieceGrowth, is_inner

_ROWS = 2  # the axis of an image, of which axes 0 and 1 are the batch and channels
_COUNTS = (2, 4, 8, 16, 32, 64)
_LONGEST = 64  # nodes of a region
_CALL = 64 << 10  # bytes that memory moves while a kernel starts: some 6 us at 10 GB/s
_OPERATIONS = 2  # floating point operations while memory moves a byte: MobileNetV2's convolutions, 58 and 36 G/s a core
_NEAR = 4  # times the bytes that near computation take as those of memory
_WORTH = 3  # bytes of memory that must get free for a byte that is moved


@dataclass(frozen=True)
class RowRegion:
    """Members in their order, and how many instances each becomes."""

    members: tuple[Member, ...]
    count: int


def row_cuts(graph: Graph) -> tuple[dict[Node, Cut], dict[Node, str]]:
    """How nodes are cut along the rows of images, and why others are not which read or write such images.

    Convolutions and pools say what the rows are; in both directions the axis goes on through what reads or writes the
    same rows. Rows have to be outermost in memory, so that an instance's are in one place.
    """
    rows = _RowAxes(graph)
    nodes = graph.nodes()
    for node in nodes:
        rows.forward(node)
    for node in reversed(nodes):
        rows.backward(node)
    return rows.cuts, rows.reasons


class _RowAxes:
    def __init__(self, graph: Graph):
        self._graph = graph
        self._axes: dict[str, int] = {}  # array -> its axis of rows
        self.cuts: dict[Node, Cut] = {}
        self.reasons: dict[Node, str] = {}

    def forward(self, node: Node) -> None:
        """Cut what has windows over images, or reads rows that are known."""
        written = [n for n in self._graph.outputs_of(node) if n is not None]
        if isinstance(node, (Convolution, Pool)) and len(self._graph.shape(written[0])) > _ROWS:
            self._try(node, dict.fromkeys(written, _ROWS))
            return
        read = {s for n in self._graph.inputs_of(node) if n is not None for s in self._graph.sources(n)}
        if read.isdisjoint(self._axes):
            return
        ways = cuts_of(self._graph, node)
        fitting = [w for w in ways.ways if self._agrees(w)]
        if fitting:
            self._take(node, fitting[0])
        else:
            self.reasons[node] = ways.reason

    def backward(self, node: Node) -> None:
        """Cut what writes rows that are known from its readers."""
        written = [n for n in self._graph.outputs_of(node) if n is not None]
        if node not in self.cuts and node not in self.reasons and all(n in self._axes for n in written):
            self._try(node, {n: self._axes[n] for n in written})

    def _agrees(self, cut: Cut) -> bool:
        axes = {name: link.axis for name, link in cut.links.items() if name in self._axes}
        return bool(axes) and all(self._axes[name] == axis for name, axis in axes.items())

    def _try(self, node: Node, axes: Mapping[str, int]) -> None:
        open_size = cuts_of(self._graph, node).reason if not _is_known(self._graph, node) else ""
        try:
            if open_size:
                raise CannotSplit(open_size)
            self._take(node, cut_along(self._graph, node, axes))
        except CannotSplit as error:
            self.reasons[node] = str(error)

    def _take(self, node: Node, cut: Cut) -> None:
        inside = next((n for n, axis in cut.division.axes.items() if not _is_outermost(self._graph, n, axis)), None)
        if inside is not None:
            self.reasons[node] = f"rows of {inside} are not outermost in memory"
            return
        self.cuts[node] = cut
        self._axes.update(cut.division.axes)
        for name, link in cut.links.items():
            self._axes.setdefault(name, link.axis)


def _is_known(graph: Graph, node: Node) -> bool:
    names = [n for n in (*graph.inputs_of(node), *graph.outputs_of(node)) if n is not None]
    return all(isinstance(n, int) and n for name in names for n in graph.shape(name))


def _is_outermost(graph: Graph, name: str, axis: int) -> bool:
    """Is it further from one index to the next along ``axis`` than along each other axis of several indices?"""
    strides, shape = graph.strides(name), graph.shape(name)
    others = [s for k, (s, n) in enumerate(zip(strides, shape, strict=True)) if k != axis and n != 1]
    return all(isinstance(s, int) and s <= strides[axis] for s in others)


# ---------------------------------------------------------------- the intervals


def row_regions(graph: Graph, nodes: Sequence[Node], cuts: Mapping[Node, Cut], cache: int = 0) -> list[RowRegion]:
    """The regions of ``nodes``, which are in topological order, that gain the most together: an instance's arrays stay
    near if they take ``cache`` bytes (default: four times the second-level caches) at most."""
    search = _Search(graph, nodes, cuts, cache or min(limits().together, 4 * limits().l2 * limits().cores))
    best: list[tuple[float, int, int]] = [(0, 0, 0)]  # of the nodes before: gain, first node of the last region, count
    for end in range(1, len(nodes) + 1):
        choice = (best[-1][0], end - 1, 1)
        for count in _COUNTS:
            for start, gain in search.gains(end, count):
                choice = max(choice, (best[start][0] + gain, start, count), key=lambda c: c[0])
        best.append(choice)
    regions, end = [], len(nodes)
    while end:
        _, start, count = best[end]
        if count > 1:
            regions.append(RowRegion(tuple((n, cuts[n]) for n in nodes[start:end]), count))
        end = start
    return regions[::-1]


class _Search:
    def __init__(self, graph: Graph, nodes: Sequence[Node], cuts: Mapping[Node, Cut], cache: int):
        self._graph, self._nodes, self._cuts, self._cache = graph, nodes, cuts, cache
        self._work = {node: self._work_of(node) for node in cuts}
        self._weights = {node: sum(map(self._bytes, cut.whole)) for node, cut in cuts.items()}

    def _bytes(self, name: str) -> int:
        return int(self._graph.size(name)) * types.itemsize(self._graph.dtype(name))

    def _work_of(self, node: Node) -> float:
        """Bytes that memory moves while all of ``node`` is computed of what is near."""
        names = {*self._cuts[node].links, *self._cuts[node].division.axes}
        return max(int(known_flops(self._graph, node)) / _OPERATIONS, sum(map(self._bytes, names)) / _NEAR)

    def gains(self, end: int, count: int) -> Iterator[tuple[int, float]]:
        """(first node, gain) of each region of ``count`` instances whose last node is the one before ``end``."""
        inside = set(self._nodes[:end])
        growth = PieceGrowth(self._graph, count, "recomputed", inside)
        costs, whole = _Costs(), set[str]()
        for start in range(end - 1, max(end - _LONGEST, 0) - 1, -1):
            node = self._nodes[start]
            cut = self._cuts.get(node)
            if cut is None or not whole.isdisjoint(cut.division.axes):  # an instance would read all of the others'
                return
            try:
                growth.add(node, cut)
            except CannotSplit:
                return
            whole.update(cut.whole)
            self._count(costs, growth, node, inside)
            near = costs.moved if costs.most <= self._cache else 0
            yield start, near + costs.held / _WORTH - costs.again

    def _count(self, costs: _Costs, growth: PieceGrowth, node: Node, inside: set[Node]) -> None:
        graph, cut, count = self._graph, self._cuts[node], len(growth.pieces.spans[node])
        spans = growth.pieces.spans[node]
        extra = growth.pieces.extra(cut, node) / cut.extent
        costs.again += extra * self._work[node] + (count - 1) * self._weights[node] + count * _CALL
        most = max(end - start for start, end in spans)
        for name in cut.division.axes:
            size = self._bytes(name)
            costs.alive[name] = tile = size * most // cut.extent
            readers = [r for r in graph.all_consumers(name) if r in inside]
            ends_here = bool(readers) and is_inner(graph, name, inside)
            costs.held += size - tile if ends_here else 0
            costs.moved += size * (len(readers) + ends_here) if size > self._cache else 0
        for name, link in cut.links.items():
            extent = int(graph.shape(name)[link.axis])
            rows = max(b - a for a, b in (link.reach(span, extent) for span in spans))
            costs.alive[name] = max(costs.alive.get(name, 0), self._bytes(name) * rows // extent)
        costs.most = max(costs.most, sum(costs.alive.values()))
        for name in cut.division.axes:
            del costs.alive[name]


class _Costs:
    """Bytes of a region that grows from its end: ``moved`` no more, ``held`` no more, moved while something is computed
    ``again``; those of an instance that are ``alive`` before its first node, and the ``most`` of them at once."""

    def __init__(self) -> None:
        self.moved = self.held = self.again = self.most = 0.0
        self.alive: dict[str, int] = {}

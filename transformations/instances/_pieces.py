"""Which elements each instance of a sub-graph writes, backwards from its results; and what neighbours both need."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node
from daceopt.splits import CannotSplit
from daceopt.transformations.instances._cuts import Cut, Span

Member = tuple[Node, Cut]
"""A node of the sub-graph, and how it is cut."""


@dataclass
class Pieces:
    """``spans``: node -> its elements in each instance, along the axis of its cut. ``own``: arrays of which each
    instance has one of its own, because they overlap; all others consist of parts."""

    spans: dict[Node, list[Span]] = field(default_factory=dict)
    own: set[str] = field(default_factory=set)

    def extra(self, cut: Cut, node: Node) -> int:
        """How many elements along its axis a node computes more than once."""
        return sum(end - start for start, end in self.spans[node]) - cut.extent


class PieceGrowth:
    """The pieces of ``count`` instances of a sub-graph, of which ``inside`` are the nodes; :meth:`add` takes its
    members from the last one back, so that ``pieces`` are those of the members so far at any time."""

    def __init__(self, graph: Graph, count: int, halos: str, inside: Collection[Node]):
        self._graph, self._count, self._inside = graph, count, inside
        self._recomputed = halos == "recomputed"
        self._needs: dict[str, list[Span | None]] = {}
        self.pieces = Pieces()

    def add(self, node: Node, cut: Cut) -> None:
        """Raises CannotSplit where an instance would have nothing to do."""
        graph, names = self._graph, cut.division.axes
        needed = _wanted_spans(cut, self._needs, self._count)
        apart = self._recomputed and all(is_inner(graph, name, self._inside) for name in names)
        outside = _is_read_outside(graph, cut, self._inside)
        spans = needed if apart and needed else _even(cut.extent, needed, self._count, outside)
        if apart and needed and not _tiles(spans, cut.extent):
            self.pieces.own |= set(names)
        _check(node, cut, spans)
        self.pieces.spans[node] = spans
        for name, link in cut.links.items():
            size = int(graph.shape(name)[link.axis])
            before = self._needs.setdefault(name, [None] * self._count)
            self._needs[name] = [_hull(span, link.reach(own, size)) for span, own in zip(before, spans)]


def pieces_of(graph: Graph, members: Sequence[Member], count: int, halos: str) -> Pieces:
    """The pieces of ``count`` instances of ``members``, which are in topological order.

    What the sub-graph gives to others is divided evenly. Each instance needs of the other arrays what its own nodes
    read. Where neighbours both need elements, ``halos`` says whether each computes them (an array of its own for each),
    or the first does, and the second reads them there: then an array's parts end where its instances need it to, and
    an instance depends on those before it only. Raises CannotSplit where an instance would have nothing to do.
    """
    growth = PieceGrowth(graph, count, halos, {node for node, _ in members})
    for node, cut in reversed(members):
        growth.add(node, cut)
    return growth.pieces


def _wanted_spans(cut: Cut, needs: dict[str, list[Span | None]], count: int) -> list[Span]:
    """What the instances need of what a node writes; nothing where no node of the sub-graph reads it."""
    needs_of = [needs[name] for name in cut.division.axes if name in needs]
    if not needs_of:
        return []
    hulls = [_hull_of([spans[k] for spans in needs_of]) for k in range(count)]
    return [span for span in hulls if span is not None]


def _hull_of(spans: Sequence[Span | None]) -> Span | None:
    hull: Span | None = None
    for span in spans:
        hull = _hull(hull, span) if span is not None else hull
    return hull


def _hull(a: Span | None, b: Span) -> Span:
    return b if a is None else (min(a[0], b[0]), max(a[1], b[1]))


def _even(extent: int, needed_spans: Sequence[Span], count: int, outside: bool) -> list[Span]:
    """Disjoint spans that have all elements: even ones, moved back to where ``needed_spans`` ends."""
    ends = [0]
    for k in range(count):
        even = extent * (k + 1) // count if outside or not needed_spans else 0
        needed = needed_spans[k][1] if needed_spans else 0
        ends.append(extent if k == count - 1 else max(even, needed, ends[-1]))
    return list(pairwise(ends))


def _tiles(spans: Sequence[Span], extent: int) -> bool:
    return [0, *(end for _, end in spans)] == [*(start for start, _ in spans), extent]


def _check(node: Node, cut: Cut, spans: Sequence[Span]) -> None:
    for start, end in spans:
        reason = cut.division.check(start, end - start) if end > start else "no elements"
        if reason:
            raise CannotSplit(f"{node}, elements {start} to {end} of axis {cut.axis}: {reason}")


def is_inner(graph: Graph, name: str, inside: Collection[Node]) -> bool:
    """Can each instance have an array of its own: does only the sub-graph read it, as it is?"""
    if graph.is_kept(name) or graph.is_part(name) or graph.views_of(name):
        return False
    return all(node in inside for node in graph.consumers(name))


def _is_read_outside(graph: Graph, cut: Cut, inside: Collection[Node]) -> bool:
    names = cut.division.axes
    return any(graph.is_kept(n) or any(c not in inside for c in graph.all_consumers(n)) for n in names)


# ---------------------------------------------------------------- what halos cost


@dataclass(frozen=True)
class HaloCosts:
    """Seconds that it takes to compute again what neighbours need, and to keep it; infinite where it cannot be."""

    recomputed: float
    kept: float

    @property
    def best(self) -> str:
        """One of ``ir.graph.sub_graphs.HALOS``."""
        return "recomputed" if self.recomputed <= self.kept else "kept"

    def __str__(self) -> str:
        shown = {"recomputed": self.recomputed, "kept": self.kept}
        other = "kept" if self.best == "recomputed" else "recomputed"
        return f"halos {self.best} ({shown[self.best] * 1e6:.3g} us, {other} {shown[other] * 1e6:.3g} us)"


def halo_costs(
    graph: Graph, members: Sequence[Member], count: int, work: Callable[[Node], float], transfer: Callable[[str], float]
) -> HaloCosts:
    """``work``: seconds of a node; ``transfer``: seconds to write an array to the next larger buffer and to read it.

    Computed again: the share of each node's work that several instances do. Kept: an array that an instance leaves for
    the next one is alive until the last, and then too large for the buffer that instances are sized for.
    """

    shared = _shared_arrays(graph, members)

    def of(halos: str) -> float:
        try:
            pieces = pieces_of(graph, members, count, halos)
        except CannotSplit:
            return float("inf")
        again = (max(pieces.extra(cut, node), 0) / cut.extent * work(node) for node, cut in members)
        return sum(again) + sum(transfer(name) for name in shared - pieces.own)

    return HaloCosts(of("recomputed"), of("kept"))


def _shared_arrays(graph: Graph, members: Sequence[Member]) -> set[str]:
    """Arrays of the sub-graph that neighbouring instances both read."""
    written = {name for _, cut in members for name in cut.division.axes}
    return {name for _, cut in members for name, link in cut.links.items() if link.halo and name in written}

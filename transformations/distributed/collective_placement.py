"""Start reductions as soon as what they sum is complete, and wait for them as late as they are used."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import dace

from daceopt.errors import DaceoptError
from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node
from daceopt.ir.graph.order import by_priority, sources_of
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.nodes.collective import (
    AgreementStart,
    AgreementWait,
    AllGatherStart,
    CollectiveStart,
    CollectiveWait,
    exchanges_of,
    sequence_number,
)
from daceopt.passes.transform import NearMiss, Site, Transformation
from daceopt.transformations.distributed.tensor_fusion import wait_of

WAITS = ("use", "end")


@dataclass(frozen=True)
class CollectivePlacement(Transformation):
    """Order the nodes of a graph around its reductions, and let all ranks agree on their sequence first.

    before:  a = f(x); a' = wait(start(a)); u = g(a'); b = h(x); b' = wait(start(b)); v = g(b')
    after:   agree; a = f(x); start(a); b = h(x); start(b); wait(a); u = g(a'); wait(b); v = g(b')

    Starts run in the order of their positions, which all ranks share: each behind the one before it (an edge of the
    graph) and behind what it sums, before which nothing is computed but what that needs. All that needs a result of a
    reduction runs after the last start: by the latest reduction that it needs, so that the update of a bucket runs
    while later ones are on their way. ``wait='end'`` waits for all of them before. Exchanges that need the result of
    another, as the all-gather of what was updated in shards, start behind those that do not, and are waited for last.
    """

    level: ClassVar[str] = "hardware"
    wait: str = "use"

    def __post_init__(self) -> None:
        if self.wait not in WAITS:
            raise DaceoptError(f"wait={self.wait!r} of collective-placement; expected one of {WAITS}")

    def match(self, graph: Graph) -> Iterator[Site | NearMiss]:
        starts = [n for n in graph.nodes() if isinstance(n, CollectiveStart)]
        if starts and not any("After" in graph.reads(n) for n in starts):
            gathers = sum(isinstance(n, AllGatherStart) for n in starts)
            title = f"{len(starts) - gathers} reductions" + (f", {gathers} all-gathers" if gathers else "")
            yield Site(graph, tuple(starts), {"title": title})

    def apply(self, site: Site) -> None:
        graph = site.graph
        rounds = _rounds(graph)
        starts = sorted(site.nodes, key=lambda n: (rounds[n], n.position, list(n.parameters)))
        first = sum(rounds[n] == 0 for n in starts)
        opening, chained = _chain(graph, starts)
        ranks = _ranks(graph, chained)
        graph.order = _order(graph, opening, chained, chained[:first], ranks, self.wait == "end")


def sequence_of(graph: Graph, starts: list[CollectiveStart]) -> int:
    """What stands for what is exchanged, and in which order."""
    return sequence_number(exchanges_of(graph, starts), starts[0].world)


def _rounds(graph: Graph) -> dict[Node, int]:
    """Node -> how many exchanges one after another it needs before."""
    rounds: dict[Node, int] = {}
    for node in graph.nodes():
        before = [rounds[s] for _, s in sources_of(graph, node) if s in rounds]
        rounds[node] = max(before, default=0) + isinstance(node, CollectiveWait)
    return rounds


def _chain(graph: Graph, starts: list[CollectiveStart]) -> tuple[list[Node], list[CollectiveStart]]:
    """The nodes of the agreement, and ``starts`` with the edges that order them."""
    b, common = Builder(graph, "exchange"), {"group": starts[0].group, "world": starts[0].world}
    sequence = sequence_of(graph, starts)
    handle, last = (graph.add_array("handle", (), dace.int64) for _ in range(2))
    opening = [
        b.library(AgreementStart, {}, {"Handle": handle}, sequence=sequence, **common),
        b.library(AgreementWait, {"Handle": handle}, {"Done": last}, sequence=sequence, **common),
    ]
    chained = []
    for node in starts:
        operand, written = graph.reads(node)["X"], graph.writes(node)
        attributes = {"parameters": list(node.parameters), "position": node.position, **common}
        with graph.label_nodes("exchange", graph.origins_of(node)):
            after = type(node)(inputs=("X", "After"), **attributes)
            graph.remove(node)
            graph.add_node(after, {"X": operand, "After": last}, written)
        chained.append(after)
        last = written["Handle"]
    return opening, chained


def _ranks(graph: Graph, starts: list[CollectiveStart]) -> dict[Node, int]:
    """Waits and what depends on one -> the position of the latest that it needs."""
    ranks: dict[Node, int] = {wait_of(graph, n): k for k, n in enumerate(starts)}
    for node in graph.nodes():
        before = [ranks[s] for _, s in sources_of(graph, node) if s in ranks]
        if before:
            ranks[node] = max([*before, ranks.get(node, -1)])
    return ranks


def _promptly(graph: Graph, nodes: list[Node], starts: list[Node]) -> list[Node]:
    """``nodes`` so that each of ``starts`` in turn waits for what it needs alone; otherwise in their order.

    All that a backward computes serves some gradient: what serves the next one to start runs first.
    """
    sources = {n: [s for _, s in sources_of(graph, n)] for n in nodes}
    place: dict[Node, float] = {}
    for k, start in enumerate(starts):
        needed = [s for _, s in sources_of(graph, start)]
        while needed:
            node = needed.pop()
            if node in sources and node not in place:
                place[node] = k
                needed += sources[node]
    for node in nodes:
        place.setdefault(node, max((place[s] for s in sources[node]), default=0))
    return by_priority(nodes, sources, place)


def _order(
    graph: Graph, opening: list[Node], starts: list[Node], first: list[Node], ranks: dict[Node, int], end: bool
) -> list[Node]:
    """``first``: those of ``starts`` that need no exchange before."""
    late = [n for n in graph.nodes() if n in ranks]
    special = {*opening, *starts}
    early = _promptly(graph, [n for n in graph.nodes() if n not in ranks and n not in special], first)
    order, earlier, waiting = [opening[0]], set(special), deque(first)
    for node in [None, *early]:
        if node is not None:
            order.append(node)
            earlier.add(node)
        while waiting and earlier.issuperset(s for _, s in sources_of(graph, waiting[0])):
            start = waiting.popleft()
            order += [opening[1], start] if start is first[0] else [start]
    behind = {wait_of(graph, n) for n in first} if end else set()
    order += [n for n in late if n in behind]
    lowest = len(first) if end else 0  # what of those is used follows in its own order
    return order + sorted((n for n in late if n not in behind), key=lambda n: max(ranks[n], lowest))

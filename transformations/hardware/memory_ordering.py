"""Run nodes in an order in which fewer arrays are alive together."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from daceopt.codegen import in_place
from daceopt.codegen.memory_plan import HINT, aligned_bytes, least_arena, plan
from daceopt.ir.graph import Dim, Graph
from daceopt.passes.transform import NearMiss, Site, Transformation

Successors = dict[Any, list[Any]]  # node -> the nodes that need it, each once


@dataclass(frozen=True)
class MemoryOrdering(Transformation):
    """Order the nodes of a graph so that its arena is smaller; sizes that are open count as 1024.

    before:  a = f(x); b = g(x); c = sum(a); d = sum(b)      (a and b are alive together)
    after:   a = f(x); c = sum(a); b = g(x); d = sum(b)

    The best order is NP-complete (Sethi, Complete register allocation problems, 1975). This is list scheduling: of the
    nodes that are ready, the one after which least is alive runs next. It is tried from the inputs on and from the
    outputs back, which runs each node as late as its readers allow; and in the order that the graph has, but with nodes
    that free more than they write as soon as they can run (a weight's gradient, before the one that goes on). Memory is
    planned for that of which least is alive at once; it is taken if its arena is smaller by the share ``least`` than in
    the order that the graph has.
    """

    level: ClassVar[str] = "hardware"
    changes_dataflow: ClassVar[bool] = False
    sites_are_independent: ClassVar[bool] = True
    least: float = 0.02

    def match(self, graph: Graph) -> Iterator[Site | NearMiss]:
        nodes = graph.nodes()
        after, before = _dependences(graph, nodes)
        touched = {node: _buffers(graph, node) for node in nodes}
        forth = _scheduled(nodes, after, touched)
        back = _scheduled(nodes[::-1], before, touched)[::-1]
        orders = _promising(graph, [nodes, forth, back, _scheduled(nodes, after, touched, kept=True)])
        sizes = [_number(plan(graph, graph.saved, order=o, lending=True).arena_bytes) for o in orders]
        if min(sizes) < sizes[0] * (1 - self.least):
            yield Site(graph, (), {"order": orders[sizes.index(min(sizes))]})

    def apply(self, site: Site) -> None:
        site.graph.order = site["order"]


def _promising(graph: Graph, orders: list[Any]) -> list[Any]:
    """The first, and that of the others of which least is alive at once; all where sizes are open."""
    first, *others = orders
    bounds = [least_arena(graph, graph.saved, o) for o in others]
    known = [b for b in bounds if b is not None]
    return [first, others[bounds.index(min(known))]] if len(known) == len(bounds) else orders


def _dependences(graph: Graph, nodes: Sequence[Any]) -> tuple[Successors, Successors]:
    """Who reads what a node writes, and whose results it reads; what is written over an input waits for its readers."""
    after: Successors = {node: [] for node in nodes}
    before: Successors = {node: [] for node in nodes}
    waiting = in_place.waits(graph)
    for node in nodes:
        names = [n for n in graph.inputs_of(node) if n is not None]
        sources = [source for name in names for source in graph.producers(name)]
        before[node] = list(dict.fromkeys([*sources, *waiting.get(node, ())]))
        for source in before[node]:
            after[source].append(node)
    return after, before


def _buffers(graph: Graph, node: Any) -> dict[str, int]:
    """The arena's buffers that ``node`` reads or writes, and their bytes."""
    names = [n for n in (*graph.inputs_of(node), *graph.outputs_of(node)) if n is not None]
    roots = dict.fromkeys(graph.root(n)[0] for n in names)
    inside = [r for r in roots if graph.desc(r).transient and r not in graph.saved]
    return {r: _number(aligned_bytes(graph, r)) for r in inside}


def _scheduled(
    nodes: Sequence[Any], after: Successors, touched: dict[Any, dict[str, int]], kept: bool = False
) -> list[Any]:
    """``nodes`` so that each runs before those ``after`` it; of those that are ready, the one of least growth. Growth
    counts as none with ``kept``, so that only shrinking changes the order."""
    alive = _Alive(touched, kept)
    waiting = dict.fromkeys(nodes, 0)
    for later in (n for node in nodes for n in after[node]):
        waiting[later] += 1
    rank = {node: k for k, node in enumerate(nodes)}
    ready = [(alive.growth(node), rank[node], node) for node in nodes if not waiting[node]]
    heapq.heapify(ready)
    order: dict[Any, None] = {}
    while ready:
        growth, _, node = heapq.heappop(ready)
        if node in order or growth != alive.growth(node):  # it stands in the queue again, as it is now
            continue
        order[node] = None
        for later in after[node]:
            waiting[later] -= 1
        for later in dict.fromkeys([*alive.run(node), *after[node]]):
            if not waiting[later] and later not in order:
                heapq.heappush(ready, (alive.growth(later), rank[later], later))
    return list(order)


class _Alive:
    """Buffers while nodes run: alive from the first to the last node that touches them, forward or backward."""

    def __init__(self, touched: dict[Any, dict[str, int]], only_shrinking: bool = False):
        self._touched, self._most = touched, 0 if only_shrinking else None
        self._alive: set[str] = set()
        self._users: dict[str, set[Any]] = {}
        for node, buffers in touched.items():
            for name in buffers:
                self._users.setdefault(name, set()).add(node)

    def growth(self, node: Any) -> int:
        """By how many bytes more is alive once ``node`` has run."""
        born = sum(size for name, size in self._touched[node].items() if name not in self._alive)
        growth = born - sum(size for name, size in self._touched[node].items() if len(self._users[name]) == 1)
        return growth if self._most is None else min(growth, self._most)

    def run(self, node: Any) -> list[Any]:
        """``node`` runs; returns those whose growth has changed by that."""
        changed: list[Any] = []
        for name in self._touched[node]:
            self._users[name].discard(node)
            if name not in self._alive or len(self._users[name]) == 1:
                changed += self._users[name]
        self._alive.update(self._touched[node])
        return changed


def _number(size: Dim) -> int:
    return size if isinstance(size, int) else int(size.xreplace(dict.fromkeys(size.free_symbols, HINT)))

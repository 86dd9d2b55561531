"""Run nodes in an order in which fewer arrays are alive together."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from daceopt.codegen import in_place
from daceopt.codegen.memory_plan import aligned_bytes, least_arena, plan
from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node
from daceopt.ir.scalar.dims import hint
from daceopt.passes.transform import NearMiss, Site, Transformation

Successors = dict[Node, list[Node]]  # node -> the nodes that need it, each once
Touched = dict[Node, dict[str, int]]  # node -> the arena's buffers that it reads or writes, and their bytes

_PLANS = 3  # orders for which memory is planned


@dataclass(frozen=True)
class MemoryOrdering(Transformation):
    """Order the nodes of a graph so that its arena is smaller; sizes that are open count as 1024.

    before:  a = f(x); b = g(x); c = sum(a); d = sum(b)      (a and b are alive together)
    after:   a = f(x); c = sum(a); b = g(x); d = sum(b)

    The best order is NP-complete (Sethi, Complete register allocation problems, 1975). This is list scheduling: of the
    nodes that are ready, the one after which least is alive runs next. It is tried from the inputs on and from the
    outputs back, which runs each node as late as its readers allow; in the order that the graph has, but with nodes
    that free more than they write as soon as they can run (a weight's gradient, before the one that goes on), or with
    those that write more than they free as late as they can (what is computed again); and with the former of the order
    from the outputs back. Memory is planned for at most three of these orders, those of which least is alive at once,
    as long as that could be less than what is planned already. The smallest arena is taken if it is smaller by the
    share ``least`` than in the order that the graph has.
    """

    level: ClassVar[str] = "hardware"
    changes_dataflow: ClassVar[bool] = False
    sites_are_independent: ClassVar[bool] = True
    least: float = 0.02

    def match(self, graph: Graph) -> Iterator[Site | NearMiss]:
        nodes = graph.nodes()
        after, before = _dependences(graph, nodes)
        touched = {node: _buffers(graph, node) for node in nodes}
        nearest = self._arena_bytes(graph, nodes) * (1 - self.least)
        best = None
        for bound, order in _by_bound(graph, _orders(nodes, after, before, touched))[:_PLANS]:
            if bound < nearest and (size := self._arena_bytes(graph, order)) < nearest:
                nearest, best = size, order
        if best is not None:
            yield Site(graph, (), {"order": best})

    @staticmethod
    def _arena_bytes(graph: Graph, order: Sequence[Node]) -> int:
        return hint(plan(graph, graph.saved, order=order, lending=True).arena_bytes)

    def apply(self, site: Site) -> None:
        site.graph.order = site["order"]


def _orders(nodes: Sequence[Node], after: Successors, before: Successors, touched: Touched) -> list[list[Node]]:
    """What is tried, each once. Forward, what frees memory runs early; back, what makes it runs late."""
    back = _schedule(nodes[::-1], before, touched)[::-1]
    orders = [
        _schedule(nodes, after, touched),
        _schedule(nodes, after, touched, only_shrinking=True),
        _schedule(nodes[::-1], before, touched, only_shrinking=True)[::-1],
        _schedule(back, after, touched, only_shrinking=True),
        back,
    ]
    return [list(order) for order in dict.fromkeys(map(tuple, orders)) if order != tuple(nodes)]


def _by_bound(graph: Graph, orders: Sequence[list[Node]]) -> list[tuple[int, list[Node]]]:
    """Bytes below which the plan of each does not stay, the least first; all 0, in the order given, where sizes are
    open."""
    least = [least_arena(graph, graph.saved, o) for o in orders]
    bounds = [b for b in least if b is not None]
    bounds = bounds if len(bounds) == len(least) else [0] * len(least)
    return sorted(zip(bounds, orders, strict=True), key=lambda pair: pair[0])


def _dependences(graph: Graph, nodes: Sequence[Node]) -> tuple[Successors, Successors]:
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


def _buffers(graph: Graph, node: Node) -> dict[str, int]:
    """The arena's buffers that ``node`` reads or writes, and their bytes."""
    names = [n for n in (*graph.inputs_of(node), *graph.outputs_of(node)) if n is not None]
    roots = dict.fromkeys(graph.root(n)[0] for n in names)
    inside = [r for r in roots if graph.is_transient(r) and r not in graph.saved]
    return {r: hint(aligned_bytes(graph, r)) for r in inside}


def _schedule(nodes: Sequence[Node], after: Successors, touched: Touched, only_shrinking: bool = False) -> list[Node]:
    """``nodes`` so that each runs before those ``after`` it; of those that are ready, the one of least growth. Growth
    counts as none with ``only_shrinking``, so that only shrinking changes the order."""
    alive = _Alive(touched, only_shrinking)
    waiting = dict.fromkeys(nodes, 0)
    for later in (n for node in nodes for n in after[node]):
        waiting[later] += 1
    rank = {node: k for k, node in enumerate(nodes)}
    ready = [(alive.growth(node), rank[node], node) for node in nodes if not waiting[node]]
    heapq.heapify(ready)
    order: dict[Node, None] = {}
    while ready:
        growth, _, node = heapq.heappop(ready)
        if node in order or growth != alive.growth(node):  # it is in the queue again, as it is now
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

    def __init__(self, touched: Touched, only_shrinking: bool = False):
        self._touched, self._most = touched, 0 if only_shrinking else None
        self._alive: set[str] = set()
        self._users: dict[str, set[Node]] = {}
        for node, buffers in touched.items():
            for name in buffers:
                self._users.setdefault(name, set()).add(node)

    def growth(self, node: Node) -> int:
        """By how many bytes more is alive once ``node`` has run."""
        born = sum(size for name, size in self._touched[node].items() if name not in self._alive)
        growth = born - sum(size for name, size in self._touched[node].items() if len(self._users[name]) == 1)
        return growth if self._most is None else min(growth, self._most)

    def run(self, node: Node) -> list[Node]:
        """``node`` runs; returns those whose growth has changed by that."""
        changed: list[Node] = []
        for name in self._touched[node]:
            self._users[name].discard(node)
            if name not in self._alive or len(self._users[name]) == 1:
                changed += self._users[name]
        self._alive.update(self._touched[node])
        return changed

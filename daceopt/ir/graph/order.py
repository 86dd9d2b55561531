"""In what order the top-level nodes of a graph run."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dace.sdfg.nodes import Node

from daceopt.errors import IllegalOrder
from daceopt.ir.data.provenance import label_of
from daceopt.ir.graph.dataflow_graph import DataflowGraph


@dataclass
class Order:
    """An order that was requested: the position of each node, kept by the arrays that it writes.

    Arrays keep their names when nodes are fused, replaced and copied, so what takes the place of a node runs when that
    did. Without positions nodes run in the order of :func:`topological`. Arrays are written once, so no node must run
    before another but to compute what that reads; what shares memory follows from the order (``build.memory``).
    """

    position: dict[str, int] = field(default_factory=dict)
    settled: bool = True  # has nothing been edited since the positions were given?
    latest: list[Node] | None = None  # the nodes in their order, until an edit

    def on_addition(self) -> None:
        """A node or something that one reads was added."""
        self.settled, self.latest = False, None

    def on_removal(self) -> None:
        """A node or something that one reads was removed: positions stay legal."""
        self.latest = None

    def copy(self) -> Order:
        return Order(dict(self.position), self.settled)

    def set(self, graph: DataflowGraph, nodes: Sequence[Node]) -> None:
        """Let ``nodes`` run in this order. Raises IllegalOrder."""
        check(graph, nodes)
        self.position = {name: k for k, node in enumerate(nodes) for name in _writes(graph, node)}
        self.settled, self.latest = True, None

    def of(self, graph: DataflowGraph) -> list[Node]:
        """The nodes of ``graph`` in their order. Raises ValueError where what was added makes a cycle."""
        if self.latest is None:
            self.latest = self._sort(graph)
        return list(self.latest)

    def _sort(self, graph: DataflowGraph) -> list[Node]:
        if not self.position:
            return topological(graph)
        if not self.settled:
            self.set(graph, _settle(graph, topological(graph), self.position))
        return sorted(graph.compute(), key=lambda node: _place(graph, node, self.position))


def check(graph: DataflowGraph, nodes: Sequence[Node]) -> None:
    """Raise IllegalOrder unless ``nodes`` are those of ``graph``, each once, and each after all that it reads."""
    where = f"order of graph {graph.name}"
    earlier: set[Node] = set()
    for node in nodes:
        if node not in graph:
            raise IllegalOrder(f"{where}: {label_of(node)} is no node of it")
        if node in earlier:
            raise IllegalOrder(f"{where}: {_node_name(graph, node)} runs twice")
        for name, source in sources_of(graph, node):
            if source not in earlier:
                needed = f"reads {name}, which {_node_name(graph, source)} writes"
                raise IllegalOrder(f"{where}: {_node_name(graph, node)} {needed}, and that does not run before it")
        earlier.add(node)
    if missing := [_node_name(graph, node) for node in graph.compute() if node not in earlier]:
        raise IllegalOrder(f"{where}: {', '.join(missing)} does not run")


def topological(graph: DataflowGraph) -> list[Node]:
    """Producers before consumers, otherwise as the nodes were added. Raises ValueError for a cycle."""
    waiting: dict[Node, int] = {}
    users: dict[Node, list[Node]] = {}
    for node in graph.compute():
        sources = {source for _, source in sources_of(graph, node)}
        waiting[node] = len(sources)
        for source in sources:
            users.setdefault(source, []).append(node)
    order = [n for n, count in waiting.items() if count == 0]
    for node in order:
        for user in users.get(node, ()):
            waiting[user] -= 1
            if waiting[user] == 0:
                order.append(user)
    if len(order) != len(waiting):
        raise ValueError("the graph has a cycle")
    return order


def _settle(graph: DataflowGraph, nodes: Sequence[Node], position: dict[str, int]) -> list[Node]:
    """The legal order nearest to ``position``: what is ready and comes first runs; new nodes run just before their
    first reader, or last."""
    sources = {node: [s for _, s in sources_of(graph, node)] for node in nodes}
    place = {node: _place(graph, node, position) for node in nodes}
    first: dict[Node, float] = {}
    for node in reversed(nodes):
        if place[node] < 0:
            place[node] = first.get(node, len(position))
        for source in sources[node]:
            first[source] = min(first.get(source, place[node]), place[node])
    return by_priority(nodes, sources, place)


def by_priority(
    nodes: Sequence[Node], sources: Mapping[Node, Sequence[Node]], place: Mapping[Node, float]
) -> list[Node]:
    """``nodes`` after their ``sources``; of those that are ready, the one of the first ``place`` runs, of equal ones
    the first of ``nodes``. What waits for itself is left out."""
    users: dict[Node, list[Node]] = {}
    waiting = {node: len(set(sources[node])) for node in nodes}
    for node in nodes:
        for source in set(sources[node]):
            users.setdefault(source, []).append(node)
    rank = {node: (place[node], k) for k, node in enumerate(nodes)}
    ready = [(rank[node], node) for node in nodes if waiting[node] == 0]
    heapq.heapify(ready)
    order = []
    while ready:
        _, node = heapq.heappop(ready)
        order.append(node)
        for user in users.get(node, ()):
            waiting[user] -= 1
            if waiting[user] == 0:
                heapq.heappush(ready, (rank[user], user))
    return order


def _place(graph: DataflowGraph, node: Node, position: dict[str, int]) -> float:
    """Where ``node`` is: at the latest of what it writes; -1 where nothing of it has a position."""
    return max((position.get(name, -1) for name in _writes(graph, node)), default=-1)


def sources_of(graph: DataflowGraph, node: Node) -> list[tuple[str, Node]]:
    """(array read, node that writes it or a part of it)"""
    reads = dict.fromkeys(n for n in graph.inputs_of(node) if n is not None)
    return [(name, source) for name in reads for source in graph.producers(name)]


def _writes(graph: DataflowGraph, node: Node) -> list[str]:
    return [n for n in graph.outputs_of(node) if n is not None]


def _node_name(graph: DataflowGraph, node: Node) -> str:
    return f"{label_of(node)} ({', '.join(_writes(graph, node))})"

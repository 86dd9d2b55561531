"""The order of a backward graph in which what is computed again is computed as late as it can be."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node
from daceopt.ir.graph.order import sources_of


def late_order(graph: Graph, again: Collection[Node]) -> list[Node]:
    """The nodes of gradients in the order in which they were made, that is from the end of the forward to its begin;
    before each of them, what of ``again`` it is the first to need, in the order of the forward."""
    place = {node: k for k, node in enumerate(graph.nodes())}
    order: dict[Node, None] = {}
    for node in graph.compute():
        if node in again:
            continue
        missing = _missing(graph, node, order)
        repeated = sorted((n for n in missing if n in again), key=place.__getitem__)
        others = sorted((n for n in missing if n not in again), key=place.__getitem__)
        order |= dict.fromkeys([*repeated, *others])
    return list(order)


def with_prompt(graph: Graph, first: Sequence[Node], prompt: Sequence[Node]) -> list[Node]:
    """The nodes ``first`` in their order, and each of ``prompt`` as soon as all that it reads is there."""
    users: dict[Node, list[Node]] = {}
    missing: dict[Node, int] = {}
    for node in prompt:
        sources = {source for _, source in sources_of(graph, node)}
        missing[node] = len(sources)
        for source in sources:
            users.setdefault(source, []).append(node)
    order: list[Node] = []
    waiting = [*reversed(first), *(n for n in reversed(prompt) if not missing[n])]
    while waiting:
        order.append(node := waiting.pop())
        for user in users.get(node, ()):
            missing[user] -= 1
            waiting += [] if missing[user] else [user]
    return order


def _missing(graph: Graph, node: Node, earlier: Collection[Node]) -> list[Node]:
    """``node`` and all that has to run before it and is not in ``earlier``."""
    missing: dict[Node, None] = {node: None}
    waiting = [node]
    while waiting:
        for _, source in sources_of(graph, waiting.pop()):
            if source not in earlier and source not in missing:
                missing[source] = None
                waiting.append(source)
    return [n for n in missing if n not in earlier]

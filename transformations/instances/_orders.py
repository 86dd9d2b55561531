"""Orders of instances that follow a rule: breadth first, depth first, the heaviest first."""

from __future__ import annotations

import heapq
from collections.abc import Callable

from daceopt.transformations.instances._units import Units


def bfs(units: Units) -> list[int]:
    """All instances of a sub-graph, then those of the next (GraphTurbo, figure 7a)."""
    return list(range(units.count))


def dfs(units: Units) -> list[int]:
    """GraphTurbo, algorithm 3: of the units that are ready, the one that became a candidate last.

    ``visit`` of the algorithm is in breadth-first order. A unit moves to ``ready`` with the first of its producers that
    runs, and runs once it is the last of ``ready`` that waits for no other: a heap of positions in ``ready`` finds it,
    where the algorithm searches.
    """
    waiting = list(units.before)
    pushed: dict[int, int] = {}
    runnable: list[tuple[int, int]] = []

    def push(k: int) -> None:
        pushed[k] = len(pushed)

    def offer(k: int) -> None:
        if not waiting[k]:
            heapq.heappush(runnable, (-pushed[k], k))

    for k in range(units.count):
        if not waiting[k]:
            push(k)
            offer(k)
    order = []
    while runnable:
        k = heapq.heappop(runnable)[1]
        order.append(k)
        for reader in units.after[k]:
            waiting[reader] -= 1
            if reader not in pushed:
                push(reader)
            offer(reader)
    return order


def footprint(units: Units) -> list[int]:
    """Of the units that are ready, the one that needs the most bytes (section 3.6); of equal ones the latest."""
    waiting = list(units.before)
    ready = [(-units.weights[k], -k, k) for k in range(units.count) if not waiting[k]]
    heapq.heapify(ready)
    order = []
    while ready:
        k = heapq.heappop(ready)[2]
        order.append(k)
        for reader in units.after[k]:
            waiting[reader] -= 1
            if not waiting[reader]:
                heapq.heappush(ready, (-units.weights[reader], -reader, reader))
    return order


HEURISTICS: dict[str, Callable[[Units], list[int]]] = {"bfs": bfs, "dfs": dfs, "footprint": footprint}

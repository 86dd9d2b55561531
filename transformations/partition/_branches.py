"""Branches of a dataflow graph whose nodes may run side by side (Zhao et al., APOLLO, section 4.3).

A multi-head node reads several others, a multi-tail node is read by several. Branches are followed from a common node,
or from a virtual one where sub-graphs have none, to the next node of either kind.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

N = TypeVar("N")

MULTI_HEAD, MULTI_TAIL, VIRTUAL_TAIL, VIRTUAL_HEAD = "multi-head", "multi-tail", "virtual tail", "virtual head"


@dataclass(frozen=True)
class Candidates(Generic[N]):
    """Branches of which no two share a node, each from its end at the common node on; ``common`` is None where that is
    a virtual one."""

    pattern: str
    common: N | None
    branches: tuple[tuple[N, ...], ...]


class BranchGraph(Generic[N]):
    """A directed acyclic graph, with the nodes that may be on a branch.

    ``eligible`` says so: compute-bound nodes, which have the whole machine busy, are walked past and never collected.
    """

    def __init__(self, successors: Mapping[N, Iterable[N]], eligible: Callable[[N], bool]):
        self._after: dict[N, tuple[N, ...]] = {n: tuple(dict.fromkeys(s)) for n, s in successors.items()}
        self._before: dict[N, tuple[N, ...]] = _reverse(self._after)
        self._eligible = {n for n in self._after if eligible(n)}

    def common_node_sets(self) -> Iterator[Candidates[N]]:
        """The branches of every multi-head node, then those of every multi-tail node, in the graph's order."""
        for node, before in self._before.items():
            if len(before) > 1:
                yield self._set(MULTI_HEAD, node, [self._backward(p) for p in before])
        for node, after in self._after.items():
            if len(after) > 1:
                yield self._set(MULTI_TAIL, node, [self._forward(s) for s in after])

    def independent_sets(self, most: int, visited: Collection[N]) -> Iterator[Candidates[N]]:
        """Sub-graphs that the nodes not ``visited`` form where compute-bound nodes are cut out, at most ``most`` at
        once: those that begin at about the same depth.

        They get a virtual tail; a virtual head where fewer than two branches lead to that. Paths between them may lead
        through what was cut out: the caller has to look.
        """
        unvisited = self._eligible.difference(visited)
        after, before = _within(self._after, unvisited), _within(self._before, unvisited)
        depth = self._depths()
        parts = sorted(_components(after, before), key=lambda part: min(depth[n] for n in part))
        for k in range(0, len(parts), most):
            nodes = [n for part in parts[k : k + most] for n in part]
            tails = [self._chain(n, before, after, unvisited) for n in nodes if not after[n]]
            heads = [self._chain(n, after, before, unvisited) for n in nodes if not before[n]]
            pattern, ends = (VIRTUAL_TAIL, tails) if len(tails) > 1 else (VIRTUAL_HEAD, heads)
            yield self._set(pattern, None, ends[:most])

    def _set(self, pattern: str, common: N | None, branches: Iterable[list[N]]) -> Candidates[N]:
        """Nodes that two branches lead to are on the first; empty branches are none."""
        in_branches: set[N] = set()
        branches_found = []
        for branch in branches:
            own = tuple(n for n in branch if n not in in_branches)
            in_branches.update(own)
            branches_found += [own] if own else []
        return Candidates(pattern, common, tuple(branches_found))

    def _backward(self, node: N) -> list[N]:
        return self._chain(node, self._before, self._after, self._eligible)

    def _forward(self, node: N) -> list[N]:
        return self._chain(node, self._after, self._before, self._eligible)

    def _chain(
        self, node: N, onward: Mapping[N, tuple[N, ...]], back: Mapping[N, tuple[N, ...]], members: Collection[N]
    ) -> list[N]:
        """From ``node`` on until the branch joins others, which excludes the node that does, or parts, which does not:
        a backward path ends before a multi-tail node and at a multi-head node, a forward path the other way round."""
        chain: list[N] = []
        while len(back[node]) <= 1:
            if node in members:
                chain.append(node)
            if len(onward[node]) != 1:
                return chain
            (node,) = onward[node]
        return chain

    def _depths(self) -> dict[N, int]:
        depth: dict[N, int] = {}
        waiting = {n: len(before) for n, before in self._before.items()}
        ready = [n for n, count in waiting.items() if not count]
        for node in ready:
            depth[node] = max((depth[p] + 1 for p in self._before[node]), default=0)
            for after in self._after[node]:
                waiting[after] -= 1
                if not waiting[after]:
                    ready.append(after)
        return depth


def _within(edges: Mapping[N, tuple[N, ...]], nodes: Collection[N]) -> dict[N, tuple[N, ...]]:
    return {n: tuple(m for m in others if m in nodes) for n, others in edges.items() if n in nodes}


def _components(after: Mapping[N, tuple[N, ...]], before: Mapping[N, tuple[N, ...]]) -> Iterator[list[N]]:
    """The nodes of each sub-graph."""
    visited: set[N] = set()
    for start in after:
        part, waiting = [], [start]
        while waiting:
            node = waiting.pop()
            if node not in visited:
                visited.add(node)
                part.append(node)
                waiting += [*after[node], *before[node]]
        if part:
            yield part


def _reverse(after: Mapping[N, tuple[N, ...]]) -> dict[N, tuple[N, ...]]:
    before: dict[N, list[N]] = {n: [] for n in after}
    for node, following in after.items():
        for successor in following:
            before[successor].append(node)
    return {n: tuple(b) for n, b in before.items()}

"""Groups of a graph's nodes that stay free of cycles as they grow: what fusion, aggregation and grouping decide on."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Mapping
from heapq import heappop, heappush
from types import MappingProxyType
from typing import Generic, TypeVar

from daceopt.errors import DaceoptError

N = TypeVar("N", bound=Hashable)


class CyclicMerge(DaceoptError):
    """Two clusters that cannot be one, because what lies on ``path`` would have to run both before and after it."""

    def __init__(self, path: list[str]):
        super().__init__(
            f"{path[0]} and {path[-1]} cannot be one cluster: {' -> '.join(path)} would be a cycle; merge what "
            "lies between as well, or first"
        )
        self.path = path


class Clusters(Generic[N]):
    """A partition of the nodes of a directed acyclic graph whose quotient graph is acyclic, too.

    A cluster is named by its leader, one of its members. Reachability is decided in a topological order of the clusters
    that is kept as they merge: a search stays between the positions of its ends, and a merge moves only what it meets
    there (Pearce and Kelly, A Dynamic Topological Sort Algorithm for Directed Acyclic Graphs, 2006, whose edge from b
    to a stands here for the contraction of a and b). Adjacency is merged from the smaller into the larger set. So a
    fusion of neighbours costs what is near them, and one of any pair at most the graph.
    """

    def __init__(self, successors: Mapping[N, Iterable[N]], ordered: bool = False):
        """One cluster per key of ``successors``, which has each node's successors (keys, too); ``ordered``: the keys
        stand in a topological order, from which the clusters' is to start.

        Raises ValueError for a cycle, and for keys that are not in the order that they are said to be in.
        """
        self._next: dict[N, dict[N, None]] = {}
        for node, after in successors.items():
            self._next[node] = dict.fromkeys(n for n in after if n != node)
        self._back: dict[N, dict[N, None]] = {n: {} for n in successors}
        for node, following in self._next.items():
            for successor in following:
                self._back[successor][node] = None
        self._leader: dict[N, N] = {}  # of a member that leads no cluster any more: a member that led its cluster then
        self._members: dict[N, deque[N]] = {n: deque([n]) for n in self._next}
        self._nodes = tuple(self._next)
        order = self._nodes if ordered else _topological(self._next, self._back)
        self._position = {n: k for k, n in enumerate(order)}
        if ordered:
            self._check_order()

    def _check_order(self) -> None:
        for node, after in self._next.items():
            if any(self._position[n] < self._position[node] for n in after):
                raise ValueError(f"{node} stands behind one of its successors")

    def copy(self) -> Clusters[N]:
        """The same clusters, to be merged in another way."""
        twin = type(self)({})
        twin._next = {n: dict(after) for n, after in self._next.items()}
        twin._back = {n: dict(before) for n, before in self._back.items()}
        twin._leader, twin._nodes, twin._position = dict(self._leader), self._nodes, dict(self._position)
        twin._members = {n: members.copy() for n, members in self._members.items()}
        return twin

    # ---------------------------------------------------------------- questions

    def leader(self, node: N) -> N:
        """The name of the cluster that holds ``node``. Raises KeyError for a node that is in none."""
        leader = node
        while leader in self._leader:
            leader = self._leader[leader]
        if leader not in self._members:
            raise KeyError(node)
        while node != leader:
            self._leader[node], node = leader, self._leader[node]
        return leader

    def members(self, node: N) -> tuple[N, ...]:
        """The cluster that holds ``node``; of two that were merged, those of the first are before the second's."""
        return tuple(self._members[self.leader(node)])

    def successors(self, node: N) -> tuple[N, ...]:
        """Leaders of the clusters that an edge leads to."""
        return tuple(self._next[self.leader(node)])

    def predecessors(self, node: N) -> tuple[N, ...]:
        """Leaders of the clusters that an edge comes from."""
        return tuple(self._back[self.leader(node)])

    def __iter__(self) -> Iterator[N]:
        """Leaders, in the order of the first of the original nodes that each cluster holds."""
        return iter(dict.fromkeys(map(self.leader, self._nodes)))

    def __len__(self) -> int:
        return len(self._members)

    def topological(self) -> list[N]:
        """Leaders in an order in which every edge leads forward."""
        return sorted(self._members, key=self._position.__getitem__)

    def position(self, node: N) -> int:
        """Where the cluster of ``node`` is in that order: fewer positions than nodes, with gaps."""
        return self._position[self.leader(node)]

    def positions(self) -> Mapping[N, int]:
        """Leader -> where its cluster is."""
        return MappingProxyType(self._position)

    def path(self, a: N, b: N) -> list[N] | None:
        """Leaders on a path of two or more edges from the cluster of ``a`` to that of ``b``, or None."""
        first, last = self.leader(a), self.leader(b)
        if self._position[first] >= self._position[last]:
            return None
        forward = _Search(self._next, self._position, first, last, 1)
        backward = _Search(self._back, self._position, last, first, -1)
        while forward.waiting and backward.waiting:
            for search, other in ((forward, backward), (backward, forward)):
                common = search.step(other.reached)
                if common is not None:
                    return [*reversed(forward.trail(common)), *backward.trail(common)[1:]]
        return None

    def obstacle(self, a: N, b: N) -> list[N] | None:
        """The path that would become a cycle if the clusters of ``a`` and ``b`` were one; None where they may merge."""
        return self.path(a, b) or self.path(b, a)

    def in_order(self, a: N, b: N) -> tuple[N, N]:
        """The leaders of both, that of ``b`` first where an edge leads from it to the other and none back."""
        first, second = self.leader(a), self.leader(b)
        is_back = second not in self._next[first] and first in self._next[second]
        return (second, first) if is_back else (first, second)

    # ---------------------------------------------------------------- edits

    def merge(self, a: N, b: N) -> N:
        """Make one cluster of those of ``a`` and ``b``, in this order; returns its leader.

        Raises CyclicMerge, and changes nothing, where a path of two or more edges leads from one to the other, and
        ValueError where both are one already.
        """
        first, second = self.leader(a), self.leader(b)
        if first == second:
            raise ValueError(f"{a} and {b} are in one cluster already")
        path = self.obstacle(first, second)
        if path is not None:
            raise CyclicMerge([str(node) for node in path])
        self._move_together(*sorted((first, second), key=self._position.__getitem__))
        return self._contract(first, second)

    def bypass(self, a: N, b: N) -> None:
        """Let the cluster of ``b`` have a copy of that of ``a``, one of its predecessors: it follows what that follows,
        and no longer that. The order stays as it is. Raises ValueError where there is no edge from a to b."""
        first, second = self.leader(a), self.leader(b)
        if second not in self._next[first]:
            raise ValueError(f"no edge leads from {a} to {b}")
        del self._next[first][second], self._back[second][first]
        for before in self._back[first]:
            self._next[before][second] = self._back[second][before] = None

    def _move_together(self, early: N, late: N) -> None:
        """Leave nothing between the two in the order: what reaches ``late`` goes before both, what ``early`` reaches
        behind both. The position of ``late`` is then free."""
        before = _Search(self._back, self._position, late, early, -1).exhaust()
        after = _Search(self._next, self._position, early, late, 1).exhaust()
        moved = [*sorted(before, key=self._position.__getitem__), early, *sorted(after, key=self._position.__getitem__)]
        slots = sorted(self._position[n] for n in (*moved, late))
        self._position.update(zip(moved, slots))
        self._position[late] = self._position[early]

    def _contract(self, first: N, second: N) -> N:
        larger, smaller = first, second
        if len(self._next[larger]) + len(self._back[larger]) < len(self._next[smaller]) + len(self._back[smaller]):
            larger, smaller = smaller, larger
        for here, there in ((self._next, self._back), (self._back, self._next)):
            for neighbour in here.pop(smaller):
                del there[neighbour][smaller]
                if neighbour != larger:
                    here[larger][neighbour] = there[neighbour][larger] = None
        del self._position[smaller]
        self._leader[smaller] = larger
        joined, other = self._members[first], self._members[second]
        if len(joined) < len(other):
            other.extendleft(reversed(joined))
            joined = other
        else:
            joined.extend(other)
        del self._members[smaller]
        self._members[larger] = joined
        return larger


class _Search(Generic[N]):
    """From ``start`` along ``edges`` to what lies strictly between it and ``end``, what is nearest to ``end`` first.

    The edge between both themselves is no path.
    """

    def __init__(self, edges: dict[N, dict[N, None]], position: dict[N, int], start: N, end: N, sign: int):
        self._edges, self._position, self._sign = edges, position, sign
        self._start, self._end, self._bound = start, end, sign * position[end]
        self.reached: dict[N, N] = {}  # -> from where
        self.waiting: list[tuple[int, int, N]] = []
        self._expand(start)

    def _expand(self, node: N) -> None:
        for n in self._edges[node]:
            place = self._sign * self._position[n]
            if n not in self.reached and place < self._bound:
                self.reached[n] = node
                heappush(self.waiting, (-place, len(self.reached), n))

    def step(self, others: Mapping[N, N]) -> N | None:
        """Go on from one node; returns one that ``others``, a search from the other end, has reached, too."""
        if not self.waiting:
            return None
        node = heappop(self.waiting)[2]
        if node in others:
            return node
        self._expand(node)
        return None

    def exhaust(self) -> list[N]:
        """All that is reached in the end."""
        while self.waiting:
            self._expand(heappop(self.waiting)[2])
        return list(self.reached)

    def trail(self, node: N) -> list[N]:
        """From ``node`` back to the start."""
        path = [node]
        while path[-1] != self._start:
            path.append(self.reached[path[-1]])
        return path


def _topological(successors: Mapping[N, Iterable[N]], predecessors: Mapping[N, Iterable[N]]) -> list[N]:
    """Raises ValueError for a cycle."""
    waiting = {node: len(list(before)) for node, before in predecessors.items()}
    order = [node for node, count in waiting.items() if count == 0]
    for node in order:
        for successor in successors[node]:
            waiting[successor] -= 1
            if waiting[successor] == 0:
                order.append(successor)
    if len(order) < len(waiting):
        stuck = next(node for node, count in waiting.items() if count > 0)
        raise ValueError(f"the graph has a cycle, on which or behind which {stuck} lies")
    return order

"""What is ordered: instances of sub-graphs, and nodes that are in none, with what they leave alive."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node
from daceopt.ir.scalar import types
from daceopt.ir.scalar.dims import hint

"""Taken for a size that is open."""


@dataclass(frozen=True)
class Units:
    """Units in a breadth-first order, who reads what they write, and their memory.

    ``after``: unit -> the units that read what it writes, each once. ``touched``: unit -> the buffers that it shares
    with others; ``inner``: unit -> bytes of the buffers that only it touches, where most are alive. ``sizes``: bytes of
    the shared buffers. Inputs, outputs and constants do not count: they are there in any order.
    """

    members: Sequence[Sequence[Node]]
    after: Sequence[Sequence[int]]
    touched: Sequence[Sequence[str]]
    inner: Sequence[int]
    sizes: Mapping[str, int]

    @property
    def count(self) -> int:
        return len(self.members)

    @cached_property
    def before(self) -> list[int]:
        """Unit -> how many others it reads of."""
        counts = [0] * self.count
        for readers in self.after:
            for k in readers:
                counts[k] += 1
        return counts

    @cached_property
    def weights(self) -> list[int]:
        """Unit -> the bytes that it needs while it runs."""
        return [self.inner[k] + sum(self.sizes[b] for b in self.touched[k]) for k in range(self.count)]

    @cached_property
    def users(self) -> dict[str, list[int]]:
        """Buffer -> the units that touch it."""
        users: dict[str, list[int]] = {}
        for k, buffers in enumerate(self.touched):
            for name in buffers:
                users.setdefault(name, []).append(k)
        return users

    def peak(self, order: Sequence[int]) -> int:
        """The bytes alive while a unit runs, where most are: all buffers between the first and the last that touch
        them, with what the unit itself needs."""
        last = {name: k for k in order for name in self.touched[k]}
        alive: set[str] = set()
        now = most = 0
        for k in order:
            born = [name for name in self.touched[k] if name not in alive]
            alive.update(born)
            now += sum(self.sizes[name] for name in born)
            most = max(most, now + self.inner[k])
            now -= sum(self.sizes[name] for name in self.touched[k] if last[name] == k)
        return most

    def nodes(self, order: Sequence[int]) -> list[Node]:
        """The nodes, unit by unit."""
        return [node for k in order for node in self.members[k]]


def units_of(graph: Graph) -> Units:
    """The instances of ``graph.sub_graphs`` and the nodes that are in none; a sub-graph of which instances depend on
    each other in turns is ordered node by node."""
    groups = graph.sub_graphs
    where = {node: place for node, place in graph.instance_positions().items() if groups[place[0]].is_split}
    order = graph.nodes()
    while True:
        units: dict[int, list[Node]] = {}
        for node in order:
            units.setdefault(where.get(node, node), []).append(node)
        members = list(units.values())
        after = _readers(graph, members)
        sorted_units = breadth_first(after)
        if len(sorted_units) == len(members):
            break
        stuck = {node for k in set(range(len(members))).difference(sorted_units) for node in members[k]}
        where = {node: place for node, place in where.items() if node not in stuck}
    place = {old: new for new, old in enumerate(sorted_units)}
    renamed = [sorted(place[r] for r in after[k]) for k in sorted_units]
    return _with_memory(graph, [members[k] for k in sorted_units], renamed)


def _readers(graph: Graph, members: Sequence[Sequence[Node]]) -> list[list[int]]:
    unit = {node: k for k, nodes in enumerate(members) for node in nodes}
    after: list[dict[int, None]] = [{} for _ in members]
    for node, k in unit.items():
        for name in graph.inputs_of(node):
            for source in graph.producers(name) if name is not None else ():
                if unit[source] != k:
                    after[unit[source]][k] = None
    return [list(readers) for readers in after]


def breadth_first(after: Sequence[Sequence[int]]) -> list[int]:
    """Units in the order in which all that they read becomes ready (figure 7a); those on cycles are missing."""
    waiting = [0] * len(after)
    for readers in after:
        for k in readers:
            waiting[k] += 1
    order = [k for k, count in enumerate(waiting) if not count]
    for k in order:
        for reader in after[k]:
            waiting[reader] -= 1
            if not waiting[reader]:
                order.append(reader)
    return order


def _with_memory(graph: Graph, members: Sequence[Sequence[Node]], after: Sequence[Sequence[int]]) -> Units:
    users: dict[str, list[tuple[int, int]]] = {}  # buffer -> (unit, position in it)
    for k, nodes in enumerate(members):
        for position, node in enumerate(nodes):
            for name in _buffers(graph, (*graph.inputs_of(node), *graph.outputs_of(node))):
                users.setdefault(name, []).append((k, position))
    sizes = {name: _bytes(graph, name) for name in users}
    shared = {name for name, uses in users.items() if len({k for k, _ in uses}) > 1}
    touched: list[dict[str, None]] = [{} for _ in members]
    changes: list[dict[int, int]] = [{} for _ in members]
    for name, uses in users.items():
        for k, _ in uses if name in shared else ():
            touched[k][name] = None
        if name not in shared:
            k, positions = uses[0][0], [position for _, position in uses]
            for at, size in ((min(positions), sizes[name]), (max(positions) + 1, -sizes[name])):
                changes[k][at] = changes[k].get(at, 0) + size
    shared_sizes = {name: sizes[name] for name in shared}
    return Units(members, after, [list(names) for names in touched], [_most(c) for c in changes], shared_sizes)


def _most(changes: Mapping[int, int]) -> int:
    now = most = 0
    for at in sorted(changes):
        now += changes[at]
        most = max(most, now)
    return most


def _buffers(graph: Graph, names: Iterable[str | None]) -> list[str]:
    roots = dict.fromkeys(graph.root(n)[0] for n in names if n is not None)
    return [r for r in roots if graph.is_transient(r) and r not in graph.saved]


def _bytes(graph: Graph, name: str) -> int:
    size = graph.desc(name).total_size
    return hint(size) * types.itemsize(graph.dtype(name))

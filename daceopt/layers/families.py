"""Which arrays of equal layers are the same thing in each of them.

A family is a row of arrays, one for each layer: the weights of a product, its results, what is saved of them. That the
layers of a graph are equal is seen here: each node of a layer is the node of the next one over the next member of each
family, or over arrays that both share.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Generic, NamedTuple, TypeVar

from daceopt.errors import UnequalLayers
from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node
from daceopt.layers.node_keys import NodeKeys, draws, operands
from daceopt.layers.periods import Period, longest_period

_T = TypeVar("_T")


class Label(NamedTuple):
    """The member ``layer`` of a family; layers are counted from the first member on."""

    family: str
    layer: int


@dataclass
class Layers:
    """The equal layers of ``graph``: its ``nodes`` in their order, those of a layer a period behind those of the layer
    before. ``next_array``: array -> the one that has its place a period later; ``next_draw``: the same of numbers by
    which is drawn."""

    graph: Graph
    nodes: Sequence[Node]
    period: Period
    next_array: dict[str, str] = field(default_factory=dict)
    next_draw: dict[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, graph: Graph, nodes: Sequence[Node], windows: int, keys: NodeKeys) -> Layers | None:
        """Those that follow one another at least ``windows`` times; None where there are none. Raises UnequalLayers."""
        period = longest_period([keys.of(graph, node) for node in nodes], windows)
        while period is not None:
            comparison = _Comparison(cls(graph, nodes, period))
            try:
                return comparison.result()
            except UnequalLayers:  # what is before the layers may look like the end of one
                period = period.behind(comparison.at)
                if period.windows < windows:
                    raise
        return None

    @cached_property
    def label_of(self) -> dict[str, Label]:
        """Of the arrays that each layer has for itself."""
        return labels(self.next_array)

    @cached_property
    def member(self) -> dict[Label, str]:
        """The same the other way round."""
        return {label: name for name, label in self.label_of.items()}

    def members(self, at: int) -> tuple[str, ...]:
        """The operands of the node there."""
        return operands(self.graph, self.nodes[at])


class _Comparison:
    """Compares each layer with the next one."""

    def __init__(self, layers: Layers):
        self._layers, self._graph, self._period = layers, layers.graph, layers.period
        self._place = {node: k for k, node in enumerate(layers.nodes)}
        self._arrays: OneToOne[str] = OneToOne(layers.next_array)
        self._draws: OneToOne[int] = OneToOne(layers.next_draw)
        self.at = layers.period.start  # the node that is compared

    def result(self) -> Layers:
        """The layers, where they are equal; raises UnequalLayers."""
        start, length, equal = self._period
        for self.at in range(start, start + equal):
            self._compare(self.at, self.at + length)
        return self._layers

    def _compare(self, at: int, later: int) -> None:
        one, other = self._layers.members(at), self._layers.members(later)
        if len(one) != len(other):
            label = self._layers.nodes[later].label
            raise UnequalLayers(f"{label} reads one array twice, and not a layer before, or the other way round")
        for x, y in zip(one, other):
            self._relate(x, y, at)
        numbers = (draws(self._graph, self._layers.nodes[k]) for k in (at, later))
        for number, other_number in zip(*numbers):
            self._draws.add(number, other_number)

    def _relate(self, x: str, y: str, at: int) -> None:
        """``y`` is to be in the next layer what ``x`` is in that of the node at ``at``."""
        constants = self._graph.constants
        if x in constants and y in constants and is_same_constant(self._graph, x, y):
            return
        if x in constants or y in constants:
            raise UnequalLayers(f"{y} is another constant than {x} a layer before, or none")
        if not self._arrays.add(x, y) or x == y:
            return
        if not self._is_entry(x, y, at):
            self._check_alike(x, y, at)

    def _is_entry(self, x: str, y: str, at: int) -> bool:
        """Does the first layer read from outside what the next ones read from the layer before?"""
        first = self._period.window(0)
        makers = self._places(y)
        return (
            at in first
            and bool(makers)
            and set(makers) <= set(first)
            and not any(map(self._period.has, self._places(x)))
        )

    def _check_alike(self, x: str, y: str, at: int) -> None:
        graph = self._graph
        if [k + self._period.length for k in self._places(x)] != self._places(y):
            raise UnequalLayers(f"{y} is not made where {x} is made a layer before")
        if graph.desc(x) != graph.desc(y):
            raise UnequalLayers(f"{y} is another kind of array than {x} a layer before")
        one, other = self._whole(x), self._whole(y)
        if (one is None) != (other is None) or (one and other and one[1:] != other[1:]):
            raise UnequalLayers(f"{y} is another part than {x} a layer before")
        if one and other:
            self._relate(one[0], other[0], at)

    def _whole(self, name: str) -> tuple[str, object] | None:
        """What ``name`` is a view or a part of, and where it begins there."""
        graph = self._graph
        if graph.is_view(name):
            return graph.view_source(name), graph.view_offset(name)
        return (graph.part(name).whole, graph.part(name).starts) if graph.is_part(name) else None

    def _places(self, name: str) -> list[int]:
        """Where the nodes are that write ``name``."""
        return sorted(self._place[node] for node in self._graph.producers(name))


class OneToOne(Generic[_T]):
    """Keeps a map one to one."""

    def __init__(self, forward: dict[_T, _T]):
        self._forward = forward
        self._back: dict[_T, _T] = {}

    def admits(self, x: _T, y: _T) -> bool:
        """Has neither of them another partner?"""
        return self._forward.get(x, y) == y and self._back.get(y, x) == x

    def add(self, x: _T, y: _T) -> bool:
        """Map ``x`` to ``y``; was that new? Raises UnequalLayers where either has another partner."""
        if not self.admits(x, y):
            raise UnequalLayers(f"{y} has the place of {x} once, and another place elsewhere")
        if x in self._forward:
            return False
        self._forward[x], self._back[y] = y, x
        return True


def is_same_constant(graph: Graph, x: str, y: str) -> bool:
    """Have two constants the same contents?"""
    one, other = graph.constants[x], graph.constants[y]
    return one is other or (one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes())


def labels(following: Mapping[str, str]) -> dict[str, Label]:
    """Families of an array and those after it, each called by its first member; none of what all layers share. Raises
    UnequalLayers for arrays that layers use in turn."""
    moving = {x: y for x, y in following.items() if x != y}
    return {name: Label(row[0], k) for row in rows_of(moving) for k, name in enumerate(row)}


def rows_of(following: Mapping[_T, _T]) -> list[list[_T]]:
    """Each thing that follows no other one, and those that follow it in turn. Raises UnequalLayers for a circle."""
    later = set(following.values())
    rows = [list(_row(first, following)) for first in following if first not in later]
    if sum(map(len, rows)) != len(following.keys() | later):
        raise UnequalLayers("layers use the same things in turn")
    return rows


def _row(first: _T, following: Mapping[_T, _T]) -> Iterator[_T]:
    yield first
    while first in following:
        first = following[first]
        yield first

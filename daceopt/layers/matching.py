"""Which node of a layer of a derived graph is which node of the next layer.

Recipes fuse and order nodes as they like, so layers are not looked for in the order of nodes. What is given from
outside is known to be of a layer: weights, and what the forward graph saves. From there nodes are matched along what
they read and write: the reader of a layer's weight with the reader of the next layer's, where both compute the same.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import TypeVar

from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node
from daceopt.layers.families import Label, OneToOne, is_same_constant
from daceopt.layers.node_keys import NodeKeys, draws, operands
from daceopt.layers.shortening import Shortened

_T = TypeVar("_T")


class Matching:
    """``next_array`` and ``next_node``: what is in the next layer, of arrays and nodes of ``graph``; arrays that layers
    share are next to themselves. ``external``: labels of arrays that are given from outside, ``results``: of those that
    the graph gives."""

    def __init__(
        self,
        graph: Graph,
        cut: Shortened,
        keys: NodeKeys,
        external: Mapping[str, Label],
        results: Mapping[str, Label],
    ):
        self.next_array: dict[str, str] = {}
        self.next_node: dict[Node, Node] = {}
        self._arrays, self._nodes = OneToOne(self.next_array), OneToOne(self.next_node)
        self._graph, self._cut, self._external = graph, cut, external
        self._key = {node: keys.of(graph, node) for node in graph.compute()}
        self._operands = {node: operands(graph, node) for node in self._key}
        self._open: list[tuple[str, str]] = []
        for name, later in (*_neighbours(external), *_neighbours(results)):
            self._add(name, later)
        self._run()

    def _run(self) -> None:
        """Match all that follows from what is known."""
        while self._open:
            x, y = self._open.pop()
            self._match_wholes(x, y)
            self._match_unique(self._aliases(x), self._aliases(y))
            self._match_writers(x, y)
            self._match_readers(x, y)

    def _add(self, x: str, y: str) -> None:
        """Let ``y`` be what ``x`` is in the next layer, where it can be."""
        if self._may_follow(x, y) and not self._is_constant(x) and self._arrays.add(x, y) and x != y:
            self._open.append((x, y))

    def _may_follow(self, x: str, y: str) -> bool:
        if self._is_constant(x) or self._is_constant(y):
            return self._is_constant(x) and self._is_constant(y) and self._shows_the_same(x, y)
        return self._arrays.admits(x, y) and _follows(self._label_given(x), self._label_given(y), x == y)

    def _is_constant(self, name: str) -> bool:
        return self._graph.root(name)[0] in self._graph.constants

    def _shows_the_same(self, x: str, y: str) -> bool:
        """Have two constants, or views of such, the same elements?"""
        graph = self._graph
        (one, start), (other, other_start) = graph.root(x), graph.root(y)
        return start == other_start and graph.desc(x) == graph.desc(y) and is_same_constant(graph, one, other)

    def _match_unique(self, ones: Iterable[tuple[Hashable, str]], others: Iterable[tuple[Hashable, str]]) -> None:
        for x, y in _pairs(ones, others):
            self._add(x, y)

    def _aliases(self, name: str) -> Iterator[tuple[Hashable, str]]:
        """Views and parts of ``name``, each with what it is of it."""
        graph = self._graph
        yield from (((graph.desc(v), graph.view_offset(v)), v) for v in graph.views_of(name))
        yield from (((graph.desc(p), graph.part(p).starts), p) for p in graph.parts_of(name))

    def _match_wholes(self, x: str, y: str) -> None:
        graph = self._graph
        if graph.is_view(x) and graph.is_view(y) and graph.view_offset(x) == graph.view_offset(y):
            self._add(graph.view_source(x), graph.view_source(y))
        if graph.is_part(x) and graph.is_part(y) and graph.part(x).starts == graph.part(y).starts:
            self._add(graph.part(x).whole, graph.part(y).whole)

    def _match_writers(self, x: str, y: str) -> None:
        one, other = self._graph.def_use.writer(x), self._graph.def_use.writer(y)
        if one is not None and other is not None and self._role(one, x) == self._role(other, y):
            self._match(one, other)

    def _match_readers(self, x: str, y: str) -> None:
        readers = [[(self._role(node, name), node) for node in self._graph.consumers(name)] for name in (x, y)]
        for one, other in _pairs(*readers):
            self._match(one, other)

    def _role(self, node: Node, name: str) -> Hashable:
        """What ``node`` computes, and where it has ``name``."""
        return self._key[node], tuple(k for k, n in enumerate(self._operands[node]) if n == name)

    def _match(self, one: Node, other: Node) -> None:
        """Let ``other`` be what ``one`` is in the next layer, unless it cannot be: at the ends of the layers nodes look
        like others that are over other arrays."""
        if one is other or self.next_node.get(one) is other or not self._may_match(one, other):
            return
        self._nodes.add(one, other)
        for x, y in zip(self._operands[one], self._operands[other], strict=True):
            self._add(x, y)

    def _may_match(self, one: Node, other: Node) -> bool:
        """Is there no other node in the place of either, and are their operands, and the numbers by which they draw, of
        one layer and the next?"""
        ours, theirs = self._operands[one], self._operands[other]
        numbers = zip(draws(self._graph, one), draws(self._graph, other))
        return (
            self._nodes.admits(one, other)
            and len(ours) == len(theirs)
            and len({*zip(ours, theirs)}) == len({*ours}) == len({*theirs})
            and all(self._cut.draw(number, 1) == later for number, later in numbers)
            and all(map(self._may_follow, ours, theirs))
        )

    def _label_given(self, name: str) -> Label | None:
        """The label of an array from outside, or of that of which ``name`` is a view."""
        return self._external.get(self._graph.root(name)[0])


def _follows(one: Label | None, other: Label | None, is_shared: bool) -> bool:
    """May one array, from outside or not, be in a layer what another one is in the next?"""
    if one is None or other is None:
        return one is other
    return not is_shared and other == one._replace(layer=one.layer + 1)


def _neighbours(labels: Mapping[str, Label]) -> Iterator[tuple[str, str]]:
    """Members of a family, each with that of the next layer."""
    member = {label: name for name, label in labels.items()}
    for name, label in labels.items():
        later = member.get(label._replace(layer=label.layer + 1))
        if later is not None:
            yield name, later


def _pairs(ones: Iterable[tuple[Hashable, _T]], others: Iterable[tuple[Hashable, _T]]) -> Iterator[tuple[_T, _T]]:
    """The values of keys that both have once."""
    groups: list[dict[Hashable, list[_T]]] = [{}, {}]
    for group, items in zip(groups, (ones, others)):
        for key, value in items:
            group.setdefault(key, []).append(value)
    for key, values in groups[0].items():
        if len(values) == len(groups[1].get(key, ())) == 1:
            yield values[0], groups[1][key][0]

"""A graph of a few equal layers with as many more as were left out."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from statistics import median

from daceopt.errors import UnequalLayers
from daceopt.ir.access.kernel_pattern import rename_locals, with_draws
from daceopt.ir.data.arrays import SEED
from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node
from daceopt.ir.graph.order import by_priority, sources_of
from daceopt.ir.kernel.kernel import Kernel
from daceopt.ir.kernel.kernel_node import KernelNode
from daceopt.layers.families import Label, labels, rows_of
from daceopt.layers.matching import Matching
from daceopt.layers.node_keys import NodeKeys, draws
from daceopt.layers.shortening import Shortened

_ALIKE = 3  # layers that have to be equal: the one that is copied, and one at each side to compare with


@dataclass
class KnownLabels:
    """What is known of the layers of a graph: ``labels`` of arrays that are given to it, ``rows`` (the layers of which
    there are members) of their families, and labels of its ``results``, of families of their own."""

    labels: dict[str, Label]
    rows: dict[str, list[int]]
    results: dict[str, Label]


class Copies:
    """The nodes of ``graph`` and copies of those of one of its layers.

    ``own_labels``: what is known from outside. ``names``: what arrays are to be called. ``direction``: -1 in a backward
    graph, which computes the later layers first. A node with the shift k is over the arrays of k layers later: none for
    nodes of the first layers, as many as are left out for those of the last ones, and each number up to that for those
    of the layer that is copied. Which layer that is, is nothing that can be seen in the result.
    """

    def __init__(
        self,
        graph: Graph,
        cut: Shortened,
        keys: NodeKeys,
        direction: int,
        own_labels: KnownLabels,
        names: Mapping[Label, str],
    ):
        if graph.sub_graphs or graph.placements:
            raise UnequalLayers(f"graph {graph.name} says where nodes run, and arrays live, of these layers alone")
        self._old, self._cut, self._direction = graph, cut, direction
        matching = Matching(graph, cut, keys, own_labels.labels, own_labels.results)
        self.label_of = labels(matching.next_array) | own_labels.labels
        self.rows = _rows(self.label_of) | own_labels.rows
        self._place = {node: k for k, node in enumerate(graph.nodes())}
        self._period = _period(self._place, matching.next_node)
        self._shifts = self._shifts_of_nodes(matching.next_node)
        self._names = dict(names)
        self._new = _empty(graph)
        self._owners: dict[str, int] = {}
        self._name_old_arrays()

    # ---------------------------------------------------------------- which copies there are

    def _all_shifts(self, k: int, count: int) -> range:
        """Those of the k-th of ``count`` layers: the one in the middle is copied."""
        dropped, middle = self._cut.dropped, count // 2
        return range(dropped if k > middle else 0, 1 if k < middle else dropped + 1)

    def _shifts_of_nodes(self, next_node: Mapping[Node, Node]) -> dict[Node, range]:
        shifts: dict[Node, range] = {}
        rows = rows_of(next_node)
        if not rows:
            raise UnequalLayers(f"no node of graph {self._old.name} is seen to be of a layer")
        for row in rows:
            if len(row) < _ALIKE:
                raise UnequalLayers(f"{row[0].label} of graph {self._old.name} is in {len(row)} layers only")
            shifts |= {node: self._all_shifts(k, len(row)) for k, node in enumerate(row)}
        alone = [node for node in self._place if node not in shifts]
        return shifts | {node: self._shift_of_end(node) for node in alone}

    def _shift_of_end(self, node: Node) -> range:
        """Of a node before all layers or behind them: it has something of the first one or of the last one, and else
        of the nearest two alone."""
        dropped = self._cut.dropped
        labels = {self.label_of.get(array) for name in self._operands(node) for array in self._with_wholes(name)}
        places = [(label.layer, self.rows[label.family]) for label in labels if label is not None]
        first, last = (any(layer == row[end] for layer, row in places) for end in (0, -1))
        near_first = all(layer <= row[0] + 1 for layer, row in places)
        near_last = all(layer >= row[-1] - 1 for layer, row in places)
        is_first, is_last = near_first and first, near_last and last
        if places and is_first == is_last:
            raise UnequalLayers(f"{node.label} of graph {self._old.name} is in one layer alone")
        shift = dropped if is_last else 0
        return range(shift, shift + 1)

    def _operands(self, node: Node) -> list[str]:
        return [*self._old.reads(node).values(), *self._old.writes(node).values()]

    def shifts(self, name: str, of_input: Label | None = None) -> range:
        """Of the arrays that take the place of ``name``; ``of_input``: by which input it is the gradient."""
        label = self.label_of.get(name)
        if label is not None:
            row = self.rows[label.family]
            return self._all_shifts(row.index(label.layer), len(row))
        if of_input is not None:
            return range(1) if of_input.layer <= 1 else range(self._cut.dropped, self._cut.dropped + 1)
        makers = self._old.producers(name)
        return self._shifts[makers[0]] if makers else range(1)

    # ---------------------------------------------------------------- names

    def _name_old_arrays(self) -> None:
        """Arrays keep their names where that can be: those of the first layers, then those of the last ones."""
        names_in_use = set(self._names.values())
        for shift in (0, self._cut.dropped):
            for node, shifts in self._shifts.items():
                for name in self._operands(node) if shift in shifts else ():
                    for array in self._with_wholes(name):
                        self._keep_name(array, shift, names_in_use)

    def _keep_name(self, name: str, shift: int, names_in_use: set[str]) -> None:
        label = self.label_of.get(name)
        if label is not None and name not in names_in_use:
            later = label._replace(layer=label.layer + shift)
            if later not in self._names:
                self._names[later] = name
                names_in_use.add(name)

    def _with_wholes(self, name: str) -> Iterator[str]:
        """``name``, and what it is a view or a part of."""
        while name:
            yield name
            name = self._whole(name)

    def _whole(self, name: str) -> str:
        if self._old.is_view(name):
            return self._old.view_source(name)
        return self._old.part(name).whole if self._old.is_part(name) else ""

    def name(self, name: str, shift: int) -> str:
        """The array that is ``shift`` layers later what ``name`` is, which is declared."""
        label = self.label_of.get(name)
        if label is not None:
            return self._declare_like(name, label._replace(layer=label.layer + shift), shift)
        is_own = any(whole in self.label_of for whole in self._with_wholes(name))
        if is_own and self._owners.setdefault(name, shift) != shift:
            raise UnequalLayers(f"{name} is a part of what each layer has for itself")
        return self._declare(name, name, shift)

    def _declare_like(self, name: str, label: Label, shift: int) -> str:
        if label not in self._names:
            self._names[label] = self._new.fresh_name(re.sub(r"_\d+$", "", name))
        return self._declare(name, self._names[label], shift)

    def declare(self, label: Label) -> None:
        """Let there be an array, given from outside, of the kind that its family is."""
        like = next(name for name, own in self.label_of.items() if own.family == label.family)
        self._declare_like(like, label, label.layer - self.label_of[like].layer)

    def declared_members(self, family: str) -> list[Label]:
        """The members of a family that the new graph has."""
        return [label for label, name in self._names.items() if label.family == family and self._new.has(name)]

    def name_of(self, label: Label) -> str:
        """What the member of a family is called."""
        return self._names[label]

    # ---------------------------------------------------------------- the new graph

    def graph(self) -> Graph:
        """The longer graph, without what is said of its boundary."""
        place: dict[Node, float] = {}
        for node, shifts in self._shifts.items():
            for shift in shifts:
                later = shift if self._direction > 0 else self._cut.dropped - shift
                place[self._add(node, shift)] = self._place[node] + later * self._period
        new = self._new
        sources = {node: [source for _, source in sources_of(new, node)] for node in place}
        new.order = by_priority(list(place), sources, place)
        return new

    def _declare(self, old: str, name: str, shift: int) -> str:
        graph, new = self._old, self._new
        if new.has(name):
            if new.desc(name) != graph.desc(old):
                raise UnequalLayers(f"{old} of graph {graph.name} has another layout than in other layers")
            return name
        if old == SEED:
            return new.seed()
        if graph.is_view(old):
            source = self.name(graph.view_source(old), shift)
            new.declare_view(name, source, graph.shape(old), graph.strides(old), graph.view_offset(old))
        else:
            new.declare(name, graph.shape(old), graph.dtype(old), graph.strides(old))
        if old in graph.constants:
            new.constants[name] = graph.constants[old]
        if graph.is_part(old):
            whole, starts = graph.part(old)
            new.attach(name, self.name(whole, shift), starts)
        if old in graph.origins:
            new.origins[name] = self._cut.origins(graph.origins[old], shift)
        return name

    def _add(self, node: Node, shift: int) -> Node:
        """Add ``node``, or what it is ``shift`` layers later."""
        reads, writes = (
            {c: self.name(n, shift) for c, n in side.items()}
            for side in (self._old.reads(node), self._old.writes(node))
        )
        if isinstance(node, KernelNode):
            twin: Node = KernelNode(self._kernel(node, shift))
            twin.in_connectors, twin.out_connectors = dict(node.in_connectors), dict(node.out_connectors)
            twin.label = node.label
        else:
            twin = copy.deepcopy(node)
        self._new.add_node(twin, reads, writes)
        return twin

    def _kernel(self, node: KernelNode, shift: int) -> Kernel:
        kernel = node.kernel
        arrays = {a.array for s in kernel.stages for a in (*s.reads.values(), *s.writes.values())}
        own = {local: self._new.fresh_name(re.sub(r"_\d+$", "", local)) for local in kernel.locals}
        names = {name: self.name(name, shift) for name in sorted(arrays - own.keys())} | own
        numbers = {n: self._cut.draw(n, shift) for n in draws(self._old, node)}
        twin = with_draws(kernel.over(names), numbers) if numbers else kernel.over(names)
        return twin if twin.schedule is None else replace(twin, schedule=rename_locals(twin.schedule, own))

    def check_given(self) -> None:
        """Raise UnequalLayers where a node reads, or the graph gives, what nothing writes and nobody gives."""
        graph = self._new
        sources = {*graph.inputs, *graph.constants, SEED}
        read = (name for node in graph.compute() for name in graph.reads(node).values())
        for name in dict.fromkeys((*read, *graph.saved, *graph.outputs)):
            root = graph.root(name)[0]
            if root not in sources and not graph.is_written(root):
                raise UnequalLayers(f"{root} of graph {graph.name} is computed in no layer")


def _rows(label_of: Mapping[str, Label]) -> dict[str, list[int]]:
    """Family -> the layers of which there are members."""
    layers_of: dict[str, set[int]] = {}
    for label in label_of.values():
        layers_of.setdefault(label.family, set()).add(label.layer)
    return {family: sorted(layers) for family, layers in layers_of.items()}


def _period(place: Mapping[Node, int], next_node: Mapping[Node, Node]) -> float:
    """How many nodes later, or earlier, the next layer runs."""
    return median(abs(place[later] - place[node]) for node, later in next_node.items()) if next_node else 0.0


def _empty(graph: Graph) -> Graph:
    """A graph for the same target over the same sizes, without arrays."""
    new = Graph(graph.name, graph.options.target)
    new.options, new.size_names, new.source = graph.options, dict(graph.size_names), graph.source.copy()
    new.assumptions, new.symbols = list(graph.assumptions), dict(graph.symbols)
    new._counter = graph._counter
    return new

"""A network of many equal layers with a few of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from daceopt.errors import UnequalLayers
from daceopt.ir.access.kernel_pattern import with_draws
from daceopt.ir.control.imported import Gradients, Imported
from daceopt.ir.data.provenance import Origins
from daceopt.ir.graph.kinds import Node
from daceopt.ir.kernel.kernel_node import KernelNode
from daceopt.layers.families import Label, Layers
from daceopt.layers.node_keys import STREAM, NodeKeys, draws

LEAST = 10
"""Layers of a network that is shortened: of fewer, more than half would be left."""

KEPT = 5
"""Layers that are left: the first and the last, which differ by what is around them, and three to compare."""


@dataclass(frozen=True)
class Shortened:
    """``short`` is ``full`` with ``dropped`` layers fewer: ``layers`` of its graph from ``KEPT`` on; those behind them
    read what the last of those reads that are left. Arrays have the same names in both."""

    full: Imported
    short: Imported
    layers: Layers
    dropped: int
    output_positions: tuple[int, ...]
    """In the full graph, of each output of the shorter one."""
    output_labels: tuple[Label | None, ...]
    """Of each output of the shorter graph that all layers have, with the layer there."""

    def is_before_layers(self, name: str) -> bool:
        """Is ``name``, an array of the full graph, computed before all layers?"""
        return not self._before.isdisjoint(self.full.graph.producers(name))

    @cached_property
    def _before(self) -> frozenset[Node]:
        return frozenset(self.layers.nodes[: self.layers.period.start])

    def position(self, name: str) -> int:
        """That of an input of the full graph."""
        return self._inputs[name]

    def draw(self, number: int, shift: int) -> int:
        """The number by which ``shift`` layers later is drawn what is drawn by ``number`` here. Raises UnequalLayers
        for a number that no node of the full graph has."""
        if number not in self._draws:
            raise UnequalLayers(f"random numbers are drawn by {number}, which is of no operator")
        for _ in range(shift):
            number = self.layers.next_draw.get(number, number)
        return number

    def origins(self, origins: Origins, shift: int) -> Origins:
        """Where in the model is, ``shift`` layers later, what comes from ``origins``."""
        for _ in range(shift):
            origins = tuple(self._next_origin.get(origin, origin) for origin in origins)
        return origins

    @property
    def label_of(self) -> dict[str, Label]:
        """Of the arrays of the full graph that each layer has for itself."""
        return self.layers.label_of

    @property
    def member(self) -> dict[Label, str]:
        """The same the other way round."""
        return self.layers.member

    @cached_property
    def own_inputs(self) -> frozenset[str]:
        """Families of inputs."""
        others = {label.family for name, label in self.label_of.items() if name not in self._inputs}
        return frozenset(label.family for label in self.label_of.values()) - others

    @cached_property
    def rows(self) -> dict[str, list[int]]:
        """The layers of which there are members, by family of inputs, in the shorter graph."""
        inputs, layers_of = {*self.short.graph.inputs}, dict[str, list[int]]()
        for name, label in self.label_of.items():
            if name in inputs and label.family in self.own_inputs:
                layers_of.setdefault(label.family, []).append(label.layer)
        return {family: sorted(layers) for family, layers in layers_of.items()}

    @cached_property
    def _inputs(self) -> dict[str, int]:
        return {name: k for k, name in enumerate(self.full.graph.inputs)}

    @cached_property
    def _draws(self) -> frozenset[int]:
        return frozenset(number for node in self.layers.nodes for number in draws(self.full.graph, node))

    @cached_property
    def _next_origin(self) -> dict[str, str]:
        following: dict[str, str] = {}
        origins = self.full.graph.origins
        for x, y in self.layers.next_array.items():
            following |= dict(zip(origins.get(x, ()), origins.get(y, ()))) if x != y else {}
        return following


def shorten(imported: Imported) -> Shortened | None:
    """``imported`` with ``KEPT`` of its equal layers, if it has ``LEAST`` of them or more; None where it has not, or
    where they have no weights of their own, by which they are told apart. The graph is left as it is.

    Raises UnequalLayers where layers look alike and are not equal, or where what follows reads some of them apart.
    """
    graph = imported.graph
    if not _can_be_cut(imported):
        return None
    layers = Layers.of(graph, graph.compute(), LEAST, NodeKeys())
    if layers is None:
        return None
    if _mixes_gradients(imported, layers):
        return None
    cut = _Cut(imported, layers).result()
    return cut if cut.own_inputs else None


def _can_be_cut(imported: Imported) -> bool:
    """Are gradients, if any, for whoever calls the program and not for others?"""
    gradients = imported.gradients
    return gradients is None or (gradients.update is None and gradients.reduction is None)


def _mixes_gradients(imported: Imported, layers: Layers) -> bool:
    """Does what is computed of one layer's gradients belong to others, too? Of what layers share the gradient is a sum
    over all of them; and activations between batch normalizations (whose statistics layers write) are computed again by
    one kernel for many layers."""
    graph, gradients = imported.graph, imported.gradients
    differentiated = {graph.inputs[k] for k in gradients.inputs} if gradients is not None else set()
    if differentiated and not layers.next_array.keys().isdisjoint(graph.replaced.values()):
        return True
    for node in layers.nodes:
        if not differentiated.isdisjoint(graph.reads(node).values()):
            differentiated.update(graph.writes(node).values())
    return any(x == y and x in differentiated for x, y in layers.next_array.items())


class _Cut:
    """Takes layers out of a copy of a graph."""

    def __init__(self, imported: Imported, layers: Layers):
        self._imported, self._layers, self._period = imported, layers, layers.period
        self._full, self._short = imported.graph, imported.graph.copy()
        self._label_of, self._member = layers.label_of, layers.member
        self._last = {label.family: label.layer for label in sorted(self._member, key=lambda label: label.layer)}
        self.dropped = layers.period.windows - KEPT
        self._behind = {*layers.nodes[self._period.window(self._period.windows).start :]}

    def result(self) -> Shortened:
        """The imported graph with fewer layers."""
        first, behind = (self._period.window(k).start for k in (KEPT, self._period.windows))
        twins = dict(zip(self._full.compute(), self._short.compute(), strict=True))
        nodes = [twins[node] for node in self._layers.nodes]
        self._check_wanted()
        self._check_start(nodes[: self._period.start])
        removed = nodes[first:behind]
        positions = self._cut_outputs(removed)
        for node in removed:
            self._short.remove(node)
        self._move(nodes[behind:], nodes[:first])
        short, labelled = self._finish(positions), tuple(self._output_label(k) for k in positions)
        return Shortened(self._imported, short, self._layers, self.dropped, tuple(positions), labelled)

    def _check_wanted(self) -> None:
        """Layers that are not trained, or whose buffers are not written, are other layers."""
        gradients, full, inputs = self._imported.gradients, self._full, {*self._full.inputs}
        trained = {full.inputs[k] for k in gradients.inputs} if gradients is not None else set()
        pairs = [(x, y) for x, y in self._layers.next_array.items() if x in inputs and y in inputs]
        for chosen in (trained, {*full.replaced.values()}):
            for name, later in pairs:
                if (name in chosen) != (later in chosen):
                    raise UnequalLayers(f"{name} is trained or written, {later} is not, or the other way round")

    def _check_start(self, nodes: Iterable[Node]) -> None:
        """What runs before the layers may read what the first ones read, no more."""
        for node in nodes:
            for name in self._short.reads(node).values():
                if name in self._label_of and self._label_of[name].layer > 1:
                    raise UnequalLayers(f"{node.label} prepares {name}, which is of a later layer")

    def _cut_outputs(self, removed: Sequence[Node]) -> list[int]:
        """Drop outputs of layers that are removed where each layer has its own; returns the positions of the others,
        which are those of layers that are left."""
        nodes, outputs = set(removed), dict[int, str]()
        for position, name in enumerate(self._full.outputs):
            is_left = nodes.isdisjoint(self._short.producers(name))
            if name not in self._label_of or (is_left and self._is_of_each_layer(name)):
                outputs[position] = name
            elif not self._is_of_each_layer(name):
                earlier = self._earlier(name)  # refuses what is of one of the first layers
                outputs[position] = name if is_left else earlier
        self._short.outputs, full = list(outputs.values()), self._full.replaced
        self._short.replaced = {
            k: self._replace(position, full[position]) for k, position in enumerate(outputs) if position in full
        }
        return list(outputs)

    def _replace(self, position: int, old: str) -> str:
        """The input whose new value the output at ``position`` is, in the layer in whose place that is."""
        label = self._label_of.get(old)
        is_moved = label is not None and self._is_behind(self._full.outputs[position])
        return self._member[label._replace(layer=label.layer - self.dropped)] if label and is_moved else old

    def _is_of_each_layer(self, name: str) -> bool:
        """Is what ``name`` is in its layer an output of all layers?"""
        layers = [self._label_of[o].layer for o in self._full.outputs if self._family(o) == self._family(name)]
        return min(layers) <= 1 and len(layers) == self._last[self._label_of[name].family] - min(layers) + 1

    def _output_label(self, position: int) -> Label | None:
        name = self._full.outputs[position]
        if name not in self._label_of or not self._is_of_each_layer(name):
            return None
        label = self._label_of[name]
        return label._replace(layer=label.layer - self.dropped) if self._is_behind(name) else label

    def _is_behind(self, name: str) -> bool:
        """Is ``name`` computed behind all layers?"""
        return not self._behind.isdisjoint(self._full.producers(name))

    def _family(self, name: str) -> str | None:
        label = self._label_of.get(name)
        return None if label is None else label.family

    def _earlier(self, name: str) -> str:
        """What is in the place of ``name``, of one of the last layers, once layers are removed."""
        label = self._label_of[name]
        if label.layer < self._last[label.family] - 1:
            raise UnequalLayers(f"{name} is of a layer before the last, and read behind all layers")
        return self._member[label._replace(layer=label.layer - self.dropped)]

    def _name_left(self, name: str) -> str:
        """``name``, or the first member of its family, which has the same sizes."""
        label = self._label_of.get(name)
        return name if label is None else self._member[label._replace(layer=0)]

    def _move(self, nodes: Sequence[Node], others: Sequence[Node]) -> None:
        """Let ``nodes`` behind the layers read the last ones that are left, as which they draw."""
        read = dict.fromkeys(name for node in nodes for name in self._short.reads(node).values())
        layers = {*others[self._period.start :]}
        for name in filter(self._label_of.get, read):
            if not layers.isdisjoint(self._short.producers(name)):
                raise UnequalLayers(f"{name} is of one of the first layers, and read behind all layers")
            if not self._short.is_written(name):
                self._short.replace_uses(name, self._earlier(name), keep=others)
        before = {later: number for number, later in self._layers.next_draw.items()}
        for node in nodes:
            numbers = {n: _steps(n, before, self.dropped) for n in draws(self._short, node) if n in before}
            _draw_by(node, numbers)

    def _finish(self, positions: Sequence[int]) -> Imported:
        """``positions``: of the outputs that are left."""
        graph, full, gradients = self._short, self._full, self._imported.gradients
        graph.symbols = {symbol: (self._name_left(name), axis) for symbol, (name, axis) in full.symbols.items()}
        used = {name for name, _ in graph.symbols.values()} | {*graph.replaced.values()}
        graph.inputs = [n for n in full.inputs if n not in self._label_of or graph.all_consumers(n) or n in used]
        graph.prune()
        if gradients is not None:
            gradients = _move(gradients, [full.inputs.index(name) for name in graph.inputs], positions)
        return replace(self._imported, graph=graph, gradients=gradients)


def _steps(number: int, before: Mapping[int, int], count: int) -> int:
    for _ in range(count):
        number = before[number]
    return number


def _draw_by(node: Node, numbers: Mapping[int, int]) -> None:
    """Let ``node``, which is of this graph alone, draw by other numbers."""
    if isinstance(node, KernelNode) and numbers:
        node.kernel = with_draws(node.kernel, numbers)
    elif numbers:
        node.attributes = {**node.attributes, STREAM: next(iter(numbers.values()))}


def _move(gradients: Gradients, inputs: Sequence[int], outputs: Sequence[int]) -> Gradients:
    """The same of a graph with fewer inputs and outputs, of which these are the positions in the old one."""
    of_inputs = tuple(k for k, old in enumerate(inputs) if old in gradients.inputs)
    of_outputs = tuple(k for k, old in enumerate(outputs) if old in gradients.outputs)
    return replace(gradients, inputs=of_inputs, outputs=of_outputs)

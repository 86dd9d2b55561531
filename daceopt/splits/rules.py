"""The table of rules that split a node: one function per node class, found by the class's ancestry."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import NamedTuple

import sympy

from daceopt.errors import Unsupported
from daceopt.ir.data import parts
from daceopt.ir.data.provenance import label_of
from daceopt.ir.data.view_boxes import nearest
from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.scalar.dims import Dim, dim
from daceopt.ir.scalar.sizes import ALL_SIZES
from daceopt.store import identity
from daceopt.store.own_text import home


class CannotSplit(Unsupported):
    """A node cannot be split along an axis; says which, and why."""


class Held(NamedTuple):
    """An array that has what one piece needs of another: the elements from ``start`` on along ``axis``."""

    name: str
    axis: int
    start: Dim


@dataclass(frozen=True)
class Piece:
    """Elements ``start`` to ``start + extent`` along the axis that is split; ``outputs``: array that the node writes ->
    the part of it that the piece writes. ``held``: array that the node reads -> where the piece finds its elements of
    it, which is in no part of it."""

    start: Dim
    extent: Dim
    outputs: Mapping[str, str]
    held: Mapping[str, Held] = field(default_factory=dict)


@dataclass(frozen=True)
class Division:
    """How a node is split: the axis of each array that it writes, and ``build``, which adds what computes a piece."""

    axes: Mapping[str, int]
    build: Callable[[Builder, Piece], None]
    check: Callable[[Dim, Dim], str | None] = lambda start, extent: None  # why there is no piece of these elements


Rule = Callable[[Graph, Node, int], Division]
_RULES: dict[type, Rule] = {}
_BUILT_IN = ("kernels", "contraction", "windows", "others")


def splits(node_class: type) -> Callable[[Rule], Rule]:
    """Register the rule of a node class.

    ``rule(graph, node, axis)`` says how ``node`` is split along ``axis`` of the first array that it writes, or raises
    CannotSplit. It must not edit; what it reads of the node is what ``build`` needs, for the node is gone by then.
    """

    def register(rule: Rule) -> Rule:
        _RULES[node_class] = rule
        return rule

    return register


def split(graph: Graph, node: Node, axis: int, into: int | Sequence[Dim], within: Sequence[int] = ()) -> list[Node]:
    """Replace ``node`` by one node for each of ``parts`` along ``axis`` of the first array that it writes.

    before:  y = f(x)
    after:   y_0 = f(x[:k]);  y_1 = f(x[k:]);  y consists of y_0 and y_1

    ``into``: how many of about equal extent, or their extents in order (which may be symbolic). Arrays keep their
    names; those that the node writes consist of parts then. Each new node reads only the parts that it needs of arrays
    that consist of parts themselves. ``within``: numbers of larger parts, each a divisor of the next, the last one of
    the number of parts, which are in these then: (2,) with 4 makes halves of quarters, so that who reads a half reads
    an array of its own. Returns the new nodes. Raises CannotSplit, and changes nothing, with the reason.
    """
    rule = division(graph, node, axis)
    array, own = next(iter(rule.axes.items()))
    pieces = _pieces(graph.shape(array)[own], into, label_of(node))
    for start, extent in pieces:
        if reason := rule.check(start, extent):
            raise CannotSplit(f"{label_of(node)}, elements {start} to {start + extent} of axis {axis}: {reason}")

    def make() -> list[Piece]:
        outputs = {name: places(graph, name, k, pieces, within) for name, k in rule.axes.items()}
        return [Piece(*where, {n: parts[i] for n, parts in outputs.items()}) for i, where in enumerate(pieces)]

    return replace_node(graph, node, rule, make)


def replace_node(graph: Graph, node: Node, rule: Division, make: Callable[[], Sequence[Piece]]) -> list[Node]:
    """Put a node for each piece in the place of ``node``, as ``rule`` says; returns them. ``make`` gives the pieces
    once ``node`` is gone, so that it can make arrays parts of what ``node`` wrote."""
    label, origins = label_of(node), graph.origins_of(node)
    graph.remove(node)
    others = len(graph.compute())
    with graph.label_nodes(label, origins):
        for piece in make():
            rule.build(Builder(graph, label), piece)
    return graph.compute()[others:]


def places(
    graph: Graph, name: str, axis: int, pieces: Sequence[tuple[Dim, Dim]], within: Sequence[int] = ()
) -> list[str]:
    """A part of ``name`` for each of ``pieces``, (start, extent) along ``axis``; ``within`` as of :func:`split`."""
    if not within:
        return [_part(graph, name, axis, start, extent) for start, extent in pieces]
    each, result = len(pieces) // within[0], []
    for k in range(0, len(pieces), each):
        own, start = pieces[k : k + each], pieces[k][0]
        part = _part(graph, name, axis, start, dim(sum(extent for _, extent in own)))
        if each == 1:
            result.append(part)
            continue
        moved = [(dim(s - start), n) for s, n in own]
        result += places(graph, part, axis, moved, [n // within[0] for n in within[1:]])
    return result


def why_not(graph: Graph, node: Node, axis: int) -> str | None:
    """Why ``node`` cannot be split along ``axis``; None if it can."""
    try:
        division(graph, node, axis)
    except CannotSplit as error:
        return str(error)
    return None


def foreign_source() -> str:
    """What stands for the rules that users registered; "" for none."""
    users = [(c, r) for c, r in _RULES.items() if not identity.is_own(home(r))]
    return identity.text_of(users) if users else ""


def division(graph: Graph, node: Node, axis: int) -> Division:
    """How ``node`` is split along ``axis`` of the first array that it writes. Raises CannotSplit."""
    for module in _BUILT_IN:
        import_module(f"daceopt.splits.{module}")
    rule = next((_RULES[c] for c in type(node).__mro__ if c in _RULES), None)
    if rule is None:
        kind = f"{type(node).__name__} {label_of(node)!r}"
        raise CannotSplit(f"{kind} has no rule; register one with daceopt.splits.splits")
    written = [n for n in graph.outputs_of(node) if n is not None]
    if divided := [n for n in written if graph.parts_of(n)]:
        raise CannotSplit(f"{label_of(node)}: {divided[0]} consists of parts already")
    return rule(graph, node, axis)


def _pieces(size: Dim, into: int | Sequence[Dim], label: str) -> list[tuple[Dim, Dim]]:
    """(start, extent) of each."""
    extents = into
    if isinstance(extents, int):
        if not isinstance(size, int) or not 1 <= extents <= max(size, 1):
            raise CannotSplit(f"{label}: {size} elements in {extents} parts; expected 1 to as many parts as elements")
        extents = [size * (k + 1) // extents - size * k // extents for k in range(extents)]
    if dim(sympy.expand(sympy.sympify(sum(extents)) - size)) != 0:
        raise CannotSplit(f"{label}: parts of {list(extents)} elements, {sum(extents)} together; expected {size}")
    if unsure := [e for e in extents if not ALL_SIZES.is_natural(e)]:
        raise CannotSplit(f"{label}: the extent {unsure[0]} may be negative")
    starts: list[Dim] = [0]
    for extent in extents:
        starts.append(dim(starts[-1] + extent))
    return list(zip(starts, map(dim, extents)))


def _part(graph: Graph, name: str, axis: int, start: Dim, extent: Dim) -> str:
    starts: list[Dim] = [0] * len(graph.shape(name))
    shape = list(graph.shape(name))
    starts[axis], shape[axis] = start, extent
    return graph.add_part(name, graph.source.names.get(name, name), starts, shape)


# -------------------------------------------------------------------- what rules are made of


def at(graph: Graph, name: str, axis: int, rank: int) -> int | None:
    """The axis of ``name`` that broadcasts to ``axis`` (counted from 0) of an array of ``rank``; None where ``name``
    has none, or repeats one element there."""
    own = axis - (rank - len(graph.shape(name)))
    return own if own >= 0 and graph.shape(name)[own] != 1 else None


def box(b: Builder, piece: Piece, name: str, axis: int | None, start: Dim, extent: Dim) -> str:
    """Elements ``start`` to ``start + extent`` of ``name`` along ``axis`` (None: all of it): itself, a part, a view."""
    graph = b.graph
    if (held := piece.held.get(name)) is not None:
        assert axis == held.axis, f"{name} stands in pieces along axis {held.axis} only"
        name, start = held.name, dim(start - held.start)
    if axis is None or (start == 0 and graph.shape(name)[axis] == extent):
        return name
    starts: list[Dim] = [0] * len(graph.shape(name))
    extents = list(graph.shape(name))
    starts[axis], extents[axis] = start, extent
    array, inside = parts.covering(graph, name, starts, extents)
    if graph.shape(array) == tuple(extents):
        return array
    return nearest(graph, b.slice(array, inside, [s + e for s, e in zip(inside, extents, strict=True)]))

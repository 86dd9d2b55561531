"""Some nodes of a graph as a program of their own, to be measured."""

from __future__ import annotations

from collections.abc import Collection

from daceopt.errors import Unsupported
from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node


def why_not_alone(graph: Graph, node: Node) -> str | None:
    """What keeps ``node`` from running without what is around it; None where nothing does."""
    written = [n for n in graph.outputs_of(node) if n is not None]
    if any(graph.is_part(n) for n in written) or getattr(node, "has_side_effects_", False):
        return f"{getattr(node, 'label', node)} does not stand alone: it writes a part, or others wait for it"
    return None


def alone(graph: Graph, positions: Collection[int], in_place: bool = False) -> Graph:
    """A copy of ``graph`` with some of its nodes, whose operands are inputs and whose results are outputs.

    ``in_place``: outputs of theirs that take the place of inputs in ``graph`` do so in the copy.

    Raises Unsupported for one that writes a part of an array, or belongs to a protocol with others.
    """
    own = graph.copy()
    all_nodes = own.nodes()
    chosen = [all_nodes[k] for k in sorted(positions)]
    own.order = None
    for reason in (why_not_alone(own, node) for node in chosen):
        if reason is not None:
            raise Unsupported(reason)
    written = [n for node in chosen for n in own.outputs_of(node) if n is not None]
    for node in all_nodes:
        if node not in chosen:
            own.remove(node)
    read = dict.fromkeys(own.root(n)[0] for node in chosen for n in own.inputs_of(node) if n is not None)
    inputs = [name for name in read if name not in written]
    names = {*inputs, *(name for name, _ in own.symbols.values())}
    own.outputs, own.saved, own.replaced = [], [], {}
    own.inputs = [n for n in own.inputs if n in names]
    own.inputs += [n for n in inputs if not own.is_given(n)]
    for name in written:
        own.add_output(name)
    if in_place:
        pairs = ((old, graph.outputs[k]) for k, old in graph.replaced.items())
        own.replaced = {own.outputs.index(new): old for old, new in pairs if old in inputs and new in written}
    own.prune()
    return own

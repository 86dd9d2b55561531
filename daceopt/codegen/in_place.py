"""Outputs that are where an input does: the new value of a parameter, buffer or state, written over the old one.

A front end says in ``graph.replaced`` which output takes the place of which input once a program has run. That needs no
memory of its own, and no copy, where nothing reads the old value after the node that writes the new one, and that node
reads in each iteration only the element that it writes. It must not begin before it is settled that the program
succeeds: what checks numbers, or calls what may fail, runs before.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from operator import or_

from daceopt.ir.access.dataflow import same_elements
from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node
from daceopt.ir.graph.order import by_priority, sources_of
from daceopt.ir.kernel.kernel_node import KernelNode
from daceopt.ir.nodes import library
from daceopt.ir.scalar import scalar

_SURE = (
    *(library.Contraction, library.Convolution, library.ConvolutionBackwardData, library.ConvolutionBackwardWeights),
    *(library.Pool, library.PoolBackward),
)
"""Library calls whose results no number of their operands decides to be an error."""

Waits = dict[Node, list[Node]]
"""Node -> nodes that run before it."""


def pairs(graph: Graph) -> list[tuple[str, str]]:
    """(output, input that it replaces) of equal shape, type and layout."""
    candidates = [(graph.outputs[k], name) for k, name in graph.replaced.items() if k < len(graph.outputs)]
    return [(new, old) for new, old in candidates if _fit(graph, new, old)]


def _fit(graph: Graph, new: str, old: str) -> bool:
    once = graph.outputs.count(new) == 1 and old not in graph.outputs and not graph.is_given(new)
    same = graph.shape(new) == graph.shape(old) and graph.strides(new) == graph.strides(old)
    return once and same and graph.dtype(new) == graph.dtype(old) and not graph.parts_of(new)


def fallible(graph: Graph) -> set[str]:
    """What nodes write that may report an error which depends on the numbers or on Python."""
    nodes = (n for n in graph.nodes() if _may_fail(graph, n))
    return {name for node in nodes for name in graph.outputs_of(node) if name is not None}


def _may_fail(graph: Graph, node: Node) -> bool:
    if not isinstance(node, KernelNode):
        return not (isinstance(node, _SURE) or getattr(node, "sure", False))
    stages = node.kernel.stages
    return any(a.expr.has(scalar.checked, scalar.load) for stage in stages for a in stage.assignments)


def waits(graph: Graph) -> Waits:
    """What has to run first, beside what computes operands, so that outputs can be written in place: the other readers
    of what is replaced, and what may fail. Nothing is asked that an order cannot have."""
    failing = fallible(graph) if graph.replaced else set()
    risky = [n for n in graph.nodes() if not failing.isdisjoint(_results_of(graph, n))] if failing else []
    result: Waits = {}
    order, replaced = graph.nodes(), pairs(graph)
    bits = {node: 1 << k for k, node in enumerate(order)}
    later = _later(graph, order, bits) if replaced else {}
    risk = _union(bits, risky)
    for new, old in replaced:
        writer = graph.producer(new)
        readers = [n for n in graph.all_consumers(old) if n is not writer]
        if not later[writer] & (risk | _union(bits, readers)):
            result.setdefault(writer, []).extend([*readers, *(n for n in risky if n is not writer)])
    return result if len(_sort(graph, order, result)) == len(order) else {}


def _later(graph: Graph, order: Sequence[Node], bits: Mapping[Node, int]) -> dict[Node, int]:
    """Node -> the bits of all that read what it computes, or what is computed of that: at once for all of a step's
    hundreds of parameters."""
    descendants: dict[Node, int] = {}
    for node in reversed(order):
        readers = {n: None for name in _results_of(graph, node) for n in graph.all_consumers(name)}
        descendants[node] = _union(bits, readers) | _union(descendants, readers)
    return descendants


def _union(bits: Mapping[Node, int], nodes: Iterable[Node]) -> int:
    return reduce(or_, (bits[n] for n in nodes), 0)


def order_of(graph: Graph) -> list[Node]:
    """The order of ``graph``, changed no more than writing in place asks for."""
    order = graph.nodes()
    later = waits(graph)
    return _sort(graph, order, later) if later else order


def _sort(graph: Graph, order: Sequence[Node], later: Waits) -> list[Node]:
    """``order`` with each node of ``later`` after those that it waits for; shorter where there is a cycle."""
    sources = {n: [*(source for _, source in sources_of(graph, n)), *later.get(n, ())] for n in order}
    return by_priority(order, sources, {node: k for k, node in enumerate(order)})


def decide(graph: Graph, failing: Collection[str]) -> dict[str, str]:
    """Output -> input where it is, for the order that ``graph`` has; what ``failing`` names is written before."""
    order = graph.nodes()
    position = {node: k for k, node in enumerate(order)}
    last = max((k for node, k in position.items() if not set(failing).isdisjoint(_results_of(graph, node))), default=-1)
    replaced: dict[str, str] = {}
    for new, old in pairs(graph):
        writer = graph.producer(new)
        if writer is None or position[writer] <= last or old in replaced.values():
            continue
        readers = graph.all_consumers(old)
        if all(position[n] <= position[writer] for n in readers) and (
            writer not in readers or _only_its_own(graph, writer, new, old)
        ):
            replaced[new] = old
    return replaced


def _only_its_own(graph: Graph, writer: Node, new: str, old: str) -> bool:
    """Does each iteration of a kernel read of ``old`` just the element of ``new`` that it writes? A call says
    itself what it writes over."""
    if not isinstance(writer, KernelNode):
        return old in (graph.root(operand)[0] for operand in overwritable(graph, writer, new))
    stages = writer.kernel.stages
    reads = [(s, a) for s in stages for a in s.reads.values() if graph.root(a.array)[0] == old]
    writes = [(s, a) for s in stages for a in s.writes.values() if graph.root(a.array)[0] == new]
    if len(writes) != 1 or writes[0][1].wcr or any(s is not writes[0][0] for s, _ in reads):
        return False
    return all(same_elements(graph, writes[0][1], a) for _, a in reads)


def overwritable(graph: Graph, call: Node, name: str) -> list[str]:
    """The operand in whose memory ``call`` writes ``name``, if it has one and reads it there only."""
    places = getattr(call, "in_place", {})
    operand = next((places[c] for c, n in graph.writes(call).items() if c in places and n == name), None)
    if operand is None:
        return []
    reads = graph.reads(call)
    others = {graph.root(n)[0] for c, n in reads.items() if c != operand}
    return [] if graph.root(reads[operand])[0] in others else [reads[operand]]


def _results_of(graph: Graph, node: Node) -> Iterator[str]:
    return (n for n in graph.outputs_of(node) if n is not None)

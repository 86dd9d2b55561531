"""Attention's weights, which the backward computes again from queries and keys.

They are the one array of a network that grows with the square of a sequence's length. Queries and keys are stored for
their own gradients in any case, so computing the weights again takes one more product and nothing stored (Dao et al.,
FlashAttention, NeurIPS 2022, section 3.1, where the product is tiled as well). Eager PyTorch does so, too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator

from daceopt.autodiff.storage import why_not_again
from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node
from daceopt.ir.graph.operator import Operator
from daceopt.ir.nodes.library import Contraction
from daceopt.ir.scalar.dims import hint

_SOFTMAX = ("Softmax", "GuardedSoftmax")
_LONGEST = 8  # nodes between a product and the softmax of it, and from there to the second product


def attention_weights(
    graph: Graph, forward: Collection[Node], is_elementwise: Callable[[Node], bool]
) -> frozenset[str]:
    """The arrays of ``forward`` from the scores of each attention to the weights that its second product reads, where
    that stores fewer bytes: what else they are made of would have to be stored in their place."""
    weights: set[str] = set()
    for node in forward:
        if isinstance(node, Operator) and node.op_type in _SOFTMAX:
            chain = _chain(graph, node, forward, is_elementwise)
            weights |= _writes(graph, chain) if chain and _saves(graph, node, chain, is_elementwise) else set()
    return frozenset(weights)


def _chain(
    graph: Graph, softmax: Operator, forward: Collection[Node], is_elementwise: Callable[[Node], bool]
) -> list[Node]:
    """From the first product to the last node before the second; empty where it is no attention."""

    def passes(node: Node) -> bool:
        return node in forward and (is_elementwise(node) or getattr(node, "op_type", None) in ("Dropout", "Cast"))

    before = _path(softmax, lambda n: (m for a in graph.inputs_of(n) if a for m in graph.producers(a)), passes)
    after = _path(softmax, lambda n: (m for a in graph.outputs_of(n) if a for m in graph.all_consumers(a)), passes)
    if before is None or after is None or before[-1] not in forward or after[-1] not in forward:
        return []
    chain = [*reversed(before), softmax, *after[:-1]]
    return [] if any(why_not_again(graph, n) for n in chain) else chain


def _path(start: Node, steps: Callable[[Node], Iterable[Node]], passes: Callable[[Node], bool]) -> list[Node] | None:
    """From behind ``start`` to the first product, through nodes that let pass."""
    waiting: list[list[Node]] = [[]]
    while waiting:
        path = waiting.pop(0)
        for node in dict.fromkeys(steps(path[-1] if path else start)):
            if isinstance(node, Contraction):
                return [*path, node]
            if passes(node) and len(path) < _LONGEST:
                waiting.append([*path, node])
    return None


def _saves(graph: Graph, softmax: Operator, chain: Iterable[Node], is_elementwise: Callable[[Node], bool]) -> bool:
    """Are the weights more than what only the chain reads, and is expensive to make?"""
    inside = _writes(graph, chain)
    operands = {root for node in chain for root in _roots(graph, graph.inputs_of(node))} - inside
    extra = {
        name
        for name in operands
        if graph.producers(name)
        and not all(is_elementwise(n) for n in graph.producers(name))
        and not any(isinstance(n, Contraction) for n in graph.all_consumers(name))
    }
    return _bytes(graph, extra) < _bytes(graph, _roots(graph, graph.outputs_of(softmax)))


def _writes(graph: Graph, chain: Iterable[Node]) -> set[str]:
    return {root for node in chain for root in _roots(graph, graph.outputs_of(node))}


def _roots(graph: Graph, names: Iterable[str | None]) -> Iterator[str]:
    return (graph.root(n)[0] for n in names if n is not None)


def _bytes(graph: Graph, names: Iterable[str]) -> int:
    return sum(hint(graph.size(n)) * graph.dtype(n).bytes for n in names)

"""Which arrays a backward of its own computes again, so that gradients of parameters find room beside what is saved.

Eager PyTorch frees what it saved as the gradients come: at no time it holds all of both. A compiled backward gets its
results' memory when it begins. So as many bytes as the gradients take are not saved: results of activations and
normalizations that products read, each of which is one more pass over what is saved in any case. That costs time in
proportion to the gradients, not to the activations.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node
from daceopt.ir.graph.operator import Operator
from daceopt.ir.scalar.dims import hint

_ROWWISE = frozenset(("Gelu", "LayerNormalization", "RMSNormalization", "Relu", "Silu", "Sigmoid", "Tanh"))
_DEEPEST = 4  # cheap nodes between what is computed again and what is saved
_LEAST = 0.02  # of all that is saved, or of what is read to compute it again: for less nothing is computed again


def again_for_room(
    graph: Graph,
    stored: Collection[str],
    gradients: Iterable[str],
    is_elementwise: Callable[[Node], bool],
    may_repeat: Callable[[str], bool],
) -> frozenset[str]:
    """The arrays among ``stored``, the largest first, without which as many bytes are saved as ``gradients`` take."""
    room = _bytes(graph, gradients)
    if room < _LEAST * _bytes(graph, stored):
        return frozenset()
    chosen: set[str] = set()
    held: set[str] = set()  # what one that was chosen is made of
    last = 0
    for name in sorted(stored, key=lambda n: -_bytes(graph, (n,))):
        size = _bytes(graph, (name,))
        if room <= 0 and size < last:  # equal layers have arrays of one size: those of all are computed again, or none
            break
        if name in held or not may_repeat(name):
            continue
        sources = _sources(graph, name, set(stored) - chosen - {name}, is_elementwise)
        # statistics of rows are made of all that a row is
        if sources is None or len(graph.producers(name)) != 1 or size < _LEAST * _bytes(graph, sources):
            continue
        chosen.add(name)
        held |= sources
        room, last = room - size, size
    return frozenset(chosen)


def _sources(
    graph: Graph, name: str, there: Collection[str], is_elementwise: Callable[[Node], bool]
) -> set[str] | None:
    """What of ``there`` is read to compute ``name`` again by cheap nodes alone; None where these do not suffice."""
    arrays: set[str] = set()
    waiting = [(name, 0)]
    while waiting:
        array, depth = waiting.pop()
        makers = graph.producers(array)
        if depth and (array in there or not makers):
            arrays.add(array)
            continue
        if len(makers) != 1 or depth > _DEEPEST or not _is_cheap(makers[0], is_elementwise):
            return None
        waiting += [(graph.root(n)[0], depth + 1) for n in graph.inputs_of(makers[0]) if n is not None]
    return arrays


def _is_cheap(node: Node, is_elementwise: Callable[[Node], bool]) -> bool:
    return is_elementwise(node) or (isinstance(node, Operator) and node.op_type in _ROWWISE)


def _bytes(graph: Graph, names: Iterable[str]) -> int:
    return sum(hint(graph.size(n)) * graph.dtype(n).bytes for n in names)

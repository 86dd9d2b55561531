"""What a node is but for the names of its arrays and the numbers by which it draws."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import numpy as np
import sympy
from dace.sdfg.nodes import LibraryNode

from daceopt.ir.access.kernel_pattern import pattern
from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node, is_operator
from daceopt.ir.graph.operator import Operator
from daceopt.ir.kernel.kernel_node import KernelNode
from daceopt.ir.nodes.library import DenseNode

STREAM = "stream"  # the attribute of operators by which they draw
_OF_EVERY_NODE = frozenset(LibraryNode.__properties__)
_COMPARED = 4096  # bytes of a constant that is compared by its contents; of weights each is another one


class NodeKeys:
    """Numbers nodes, of several graphs: two nodes have one number where they compute the same of arrays of the same
    shape, type and layout. Regions, and nodes with a property that cannot be compared, have numbers of their own."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}

    def of(self, graph: Graph, node: Node) -> int:
        """The number of a node of ``graph``."""
        return self._numbers.setdefault(self._key(graph, node), len(self._numbers))

    def _key(self, graph: Graph, node: Node) -> Hashable:
        if isinstance(node, KernelNode):
            alike = pattern(graph, node.kernel)
            return KernelNode, alike.form, alike.starts, None if node.tree is None else alike.number(node.tree)
        if not isinstance(node, (Operator, DenseNode)):
            return Node, id(node)
        return type(node), _properties(node), tuple(_operands(graph, node))


def operands(graph: Graph, node: Node) -> tuple[str, ...]:
    """The arrays that ``node`` reads and writes: those at one place are the same thing for nodes of one key."""
    if isinstance(node, KernelNode):
        return tuple(name for name in pattern(graph, node.kernel).names if name not in node.kernel.locals)
    return tuple(name for side in (graph.reads(node), graph.writes(node)) for _, name in sorted(side.items()))


def draws(graph: Graph, node: Node) -> tuple[int, ...]:
    """The numbers by which ``node`` draws apart from others, as ``operands`` has the arrays."""
    if isinstance(node, KernelNode):
        return pattern(graph, node.kernel).draws
    if is_operator(node) and node.attribute(STREAM) is not None:
        return (int(node.attribute(STREAM)) & 0xFFFFFFFF,)
    return ()


def _properties(node: Node) -> Hashable:
    own = [(p.attr_name, value) for p, value in node.properties() if p.attr_name not in _OF_EVERY_NODE]
    return tuple((name, _freeze(value)) for name, value in sorted(own, key=lambda item: item[0]))


def _operands(graph: Graph, node: Node) -> list[Hashable]:
    keys: list[Hashable] = []
    for side in (graph.reads(node), graph.writes(node)):
        keys += [(c, graph.desc(n), _constant(graph, n)) for c, n in sorted(side.items())]
        keys.append(None)
    return keys


def _constant(graph: Graph, name: str) -> Hashable:
    """The contents of a small constant, or which array a large one is: nothing of their size is copied."""
    value = graph.constants.get(name)
    if value is None:
        return None
    return _freeze(value) if value.nbytes <= _COMPARED else ("object", id(value))


def _freeze(value: object) -> Hashable:
    """A value to compare; of what is not known how to compare, which object it is."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, Mapping):
        return tuple(
            (str(k), _freeze(v)) for k, v in sorted(value.items(), key=lambda item: str(item[0])) if k != STREAM
        )
    if isinstance(value, (str, bytes)) or value is None:
        return value
    if isinstance(value, Sequence):
        return tuple(map(_freeze, value))
    if isinstance(value, (bool, int, float, np.generic, sympy.Basic)):
        return type(value), repr(value) if isinstance(value, float) else value
    return "object", id(value)

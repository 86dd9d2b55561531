"""Operators that compute the same thing from the same inputs become one."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node
from daceopt.ir.graph.operator import Operator
from daceopt.ir.graph.operators import RANDOM
from daceopt.passes.transform import NearMiss, Site, Transformation

_SMALL = 64  # constants up to this size are compared by value


@dataclass(frozen=True)
class CommonSubexpressions(Transformation):
    """Let the readers of an equal operator (same type, version, attributes and inputs) read the first one.

    before:  a = Exp(x); b = Exp(x); y = Add(a, b)
    after:   a = Exp(x); y = Add(a, a)
    """

    level: ClassVar[str] = "coarse"

    def match_at(self, graph: Graph, node: Node) -> Iterable[Site | NearMiss]:
        if not hasattr(node, "op_type") or len(graph.inputs_of(node)) == 0:
            return
        for other in _candidates(graph, node):
            if _key(graph, other) != _key(graph, node):
                continue
            outputs = graph.outputs_of(other)
            if node.op_type in RANDOM:
                yield NearMiss(other, f"{node.op_type} draws random numbers: two of them differ")
            elif any(n in graph.outputs for n in outputs):
                yield NearMiss(other, f"its result {outputs[0]} is a graph output, which must be an array of its own")
            else:
                yield Site(graph, (node, other))

    def apply(self, site: Site) -> None:
        graph, (first, second) = site.graph, site.nodes
        for new, old in zip(graph.outputs_of(first), graph.outputs_of(second), strict=True):
            if old is not None and new is not None:
                graph.replace_uses(old, new)
        graph.remove(second)


def _candidates(graph: Graph, node: Node) -> list[Operator]:
    """Other readers of the least read input: every equal operator is among them."""
    inputs = [n for n in graph.inputs_of(node) if n is not None and n not in graph.constants]
    readers = min((graph.consumers(n) for n in inputs), key=len, default=[])
    return [r for r in readers if r is not node and getattr(r, "op_type", None) == node.op_type]


def _key(graph: Graph, node: Node) -> Hashable:
    operands = tuple(_operand(graph, n) for n in graph.inputs_of(node))
    attributes = tuple(sorted((k, _freeze(v)) for k, v in node.attributes.items()))
    # what is declared of a result may say what operands do not: the shape that a reshape is to
    results = tuple(None if n is None else (graph.shape(n), graph.dtype(n)) for n in graph.outputs_of(node))
    return node.op_type, node.domain, node.since_version, operands, attributes, results


def _operand(graph: Graph, name: str | None) -> Hashable:
    value = None if name is None else graph.constants.get(name)
    return name if value is None or value.size > _SMALL else _freeze(value)


def _freeze(value: object) -> Hashable:
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if hasattr(value, "SerializeToString"):
        return bytes(value.SerializeToString())
    return repr(value)

"""Questions about operators of a graph: who made this, what constant is it, which axes does it reduce."""

from __future__ import annotations

import numpy as np

from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.operands import require
from daceopt.ir.graph.operator import Operator

RANDOM = {
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
    "Bernoulli",
    "Multinomial",
    "Dropout",
}


def is_op(node: object, *op_types: str) -> bool:
    """Is ``node`` an operator of the default domain with one of these names?"""
    return getattr(node, "op_type", None) in op_types and getattr(node, "domain", None) == ""


def operator_writing(graph: Graph, name: str | None, *op_types: str) -> Operator | None:
    """The operator that writes ``name``, if it is one of ``op_types``."""
    if name is None or graph.is_view(name):
        return None
    node = graph.producer(name)
    return node if is_op(node, *op_types) else None


def constant(graph: Graph, name: str | None) -> np.ndarray | None:
    """The value of an array if it is known at compile time."""
    return None if name is None else graph.constants.get(name)


def scalar(graph: Graph, name: str | None) -> float | None:
    """The value of a constant of one element."""
    value = constant(graph, name)
    return float(value.reshape(())) if value is not None and value.size == 1 and value.dtype.kind in "fiu" else None


def int_list(graph: Graph, node: Operator, attribute: str, position: int) -> list[int] | None:
    """Integers given as an attribute (older opsets) or a constant input; None when absent or not constant."""
    values = node.attribute(attribute)
    if values is not None:
        return [int(v) for v in values]
    inputs = graph.inputs_of(node)
    value = constant(graph, inputs[position]) if len(inputs) > position else None
    return None if value is None else [int(v) for v in value.reshape(-1)]


def axes_of(graph: Graph, node: Operator) -> list[int] | None:
    """Normalized axes of a reduction; None when they are not constant. No axes means all of them."""
    inputs = graph.inputs_of(node)
    rank = len(graph.shape(require(inputs, 0)))
    absent = node.attribute("axes") is None and (len(inputs) < 2 or inputs[1] is None)
    if absent:
        return list(range(rank))
    axes = int_list(graph, node, "axes", 1)
    return None if axes is None else sorted(a % rank for a in axes)


def trailing(graph: Graph, node: Operator) -> list[int] | None:
    """The axes of a reduction if they are the last ones and the reduced dimensions are kept."""
    axes, rank = axes_of(graph, node), len(graph.shape(graph.operand(node, 0)))
    keeps = node.attribute("keepdims", 1) == 1
    return axes if axes and keeps and axes == list(range(axes[0], rank)) else None

"""One gradient averaged over all ranks: a pair of nodes behind it."""

from __future__ import annotations

from math import prod
from typing import Any

import sympy

from daceopt.ir.control.imported import Reduction
from daceopt.ir.graph.graph import Graph
from daceopt.ir.nodes.builder import Builder
from daceopt.transformations.distributed._exchanges import all_reduced


def average_gradient(graph: Graph, gradient: str, parameter: str, reduction: Reduction) -> str:
    """The average of ``gradient`` over all ranks; divided before it is summed, as in DistributedDataParallel.

    What is summed is an array of rank 1 of its own, which can be in a larger one.
    """
    shape = graph.shape(gradient)
    if 0 in shape:
        return gradient
    b = Builder(graph, "exchange")
    flat = gradient if len(shape) == 1 else b.reshape(gradient, (prod(shape),))
    average = add_sum(graph, share_of(graph, flat, reduction), reduction, **name_values(parameter, reduction))
    return average if len(shape) == 1 else b.reshape(average, shape)


def add_sum(graph: Graph, own: str, reduction: Reduction, **attributes: object) -> str:
    """The sum over all ranks of ``own``, an array that nothing else reads."""
    return all_reduced(graph, own, {**common_of(reduction), **attributes})


def share_of(graph: Graph, gradient: str, reduction: Reduction) -> str:
    """What this rank adds to the average, as an array of its own."""
    b, share = Builder(graph, "exchange"), sympy.Rational(1, reduction.world)
    if reduction.world == 1:
        return b.copy(gradient)
    return str(b.elementwise(lambda g: g * share, gradient, dtype=graph.dtype(gradient)))


def common_of(reduction: Reduction) -> dict[str, Any]:
    """What all nodes of an exchange say."""
    return {"group": reduction.group, "world": reduction.world}


def name_values(parameter: str, reduction: Reduction) -> dict[str, Any]:
    """What the start of an exchange says of a parameter's values."""
    position = list(reduction.parameters.values()).index(parameter)
    return {"parameters": [parameter], "position": position, **common_of(reduction)}

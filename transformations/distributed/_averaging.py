"""One gradient averaged over all ranks: a pair of nodes behind it."""

from __future__ import annotations

from math import prod

import dace
import sympy

from daceopt.ir.builder import Builder
from daceopt.ir.graph import Graph
from daceopt.ir.imported import Reduction
from daceopt.ir.nodes.collective import AllReduceStart, AllReduceWait


def averaged(graph: Graph, gradient: str, parameter: str, reduction: Reduction) -> str:
    """The average of ``gradient`` over all ranks; divided before it is summed, as in DistributedDataParallel.

    What is summed is an array of rank 1 of its own, which can stand in a larger one.
    """
    shape, dtype = graph.shape(gradient), graph.dtype(gradient)
    if 0 in shape:
        return gradient
    b, share = Builder(graph, "exchange"), sympy.Rational(1, reduction.world)
    flat = gradient if len(shape) == 1 else b.reshape(gradient, (prod(shape),))
    own = str(b.elementwise(lambda g: g * share, flat, dtype=dtype)) if reduction.world > 1 else b.copy(flat)
    common = {"group": reduction.group, "world": reduction.world}
    position = list(reduction.parameters.values()).index(parameter)
    handle = graph.add_array("handle", (), dace.int64)
    b.library(AllReduceStart, {"X": own}, {"Handle": handle}, parameters=[parameter], position=position, **common)
    average = graph.add_array("average", graph.shape(own), dtype)
    b.library(AllReduceWait, {"Handle": handle, "X": own}, {"Y": average}, **common)
    return average if len(shape) == 1 else b.reshape(average, shape)

"""Statements, and kernels, that only convert between float32 and the narrow types that products multiply."""

from __future__ import annotations

from typing import TYPE_CHECKING

import dace

from daceopt.ir.fusion.relations import flow
from daceopt.ir.kernel.kernel import Stage
from daceopt.ir.kernel.kernel_node import KernelNode
from daceopt.ir.scalar import scalar, types

if TYPE_CHECKING:
    from daceopt.ir.graph.graph import Graph


def conversion(graph: Graph, node: KernelNode) -> tuple[str, str] | None:
    """(array read, array written) of a kernel that converts each element where it is; None for others."""
    kernel = node.kernel
    stage = kernel.stages[0]
    if len(kernel.stages) != 1 or len(stage.writes) != 1 or kernel.locals or not only_converts(graph, stage):
        return None
    (read,), (write,) = stage.reads.values(), stage.writes.values()
    source, out = read.array, write.array
    same = graph.shape(out) == graph.shape(source) and graph.strides(out) == graph.strides(source)
    if write.wcr or graph.is_part(out) or not same:
        return None
    way = flow(kernel.extents, read.index, graph.shape(source), write.index, graph.shape(out))
    return (source, out) if way.is_equal else None


def only_converts(graph: Graph, stage: Stage) -> bool:
    """Whether the value written is the one value read, rounded to the type of its array, or to one of float32's range,
    or not."""
    values = {str(c) for c in stage.reads}
    kinds = {graph.dtype(a.array) for a in (*stage.reads.values(), *stage.writes.values())}
    roundings = {dace.float32, types.BFLOAT16, *kinds.intersection(types.HALVES)}
    for assignment in stage.assignments:
        value = assignment.expr
        while scalar.cast_target(value) in roundings:
            value = value.args[0]
        if str(value) not in values or assignment.dtype != dace.float32:
            return False
        values.add(str(assignment.symbol))
    return len(stage.reads) == 1

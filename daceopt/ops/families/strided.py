"""Which nodes read and write arrays with gaps, such as parts of others, as fast as dense ones."""

from __future__ import annotations

from daceopt.ir.data.provenance import label_of
from daceopt.ir.data.views import follow
from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node
from daceopt.ir.kernel.kernel_node import KernelNode
from daceopt.ir.nodes.attention_calls import AttentionCall
from daceopt.ir.nodes.library import (
    Contraction,
    Convolution,
    ConvolutionBackwardData,
    ConvolutionBackwardWeights,
    Pool,
    PoolBackward,
)
from daceopt.ir.scalar.dims import Shape, is_dense

_CONVOLUTIONS = (Convolution, ConvolutionBackwardData, ConvolutionBackwardWeights)


def takes(node: Node, shape: Shape, strides: Shape) -> bool:
    """Does ``node`` read or write an array of these strides in place?

    Kernels and pools walk any strides; products take a leading dimension, attention rows without gaps; the kernels of
    convolutions that are fast are for dense arrays, in whatever order. What is not known takes none.
    """
    if isinstance(node, (KernelNode, Pool, PoolBackward)):
        return True
    if isinstance(node, Contraction):
        return len(shape) < 2 or 1 in strides[-2:]
    if isinstance(node, AttentionCall):
        return len(shape) < 3 or strides[-1] == 1
    return isinstance(node, _CONVOLUTIONS) and is_dense(shape, strides)


def why_not_laid_out(graph: Graph, array: str, strides: Shape, apart: object) -> str | None:
    """Why ``array`` cannot have these strides: a view of it cannot follow, or a node other than ``apart`` does not take
    it so."""
    try:
        layouts = {array: strides} | {v: s for v, (s, _) in follow(graph, array, graph.strides(array), strides).items()}
    except ValueError as error:
        return str(error)
    for name, own in layouts.items():
        for node in [*graph.consumers(name), *(graph.producers(array) if name == array else ())]:
            if node is not apart and not takes(node, graph.shape(name), own):
                return f"{label_of(node)} takes {name} in other strides than {own}"
    return None

"""Library nodes as loop nests, for questions about how their operands' dimensions go into their results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from daceopt.ir.fusion.relations import LoopNest, describes
from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node
from daceopt.ir.nodes import blocked
from daceopt.ir.nodes.library import (
    Contraction,
    Convolution,
    ConvolutionBackwardData,
    ConvolutionBackwardWeights,
    IndexAdd,
    Pool,
    PoolBackward,
)
from daceopt.ir.scalar.affine import same
from daceopt.ir.scalar.dims import Dim
from daceopt.ir.scalar.symbols import Parameter, param

Index = tuple[Any, ...]


class _Loops:
    """Parameters in the order of their first use."""

    def __init__(self) -> None:
        self.extents: dict[Parameter, Dim] = {}

    def over(self, *extents: Dim) -> tuple[Parameter, ...]:
        params = tuple(param(len(self.extents) + k) for k in range(len(extents)))
        self.extents |= dict(zip(params, extents))
        return params

    def nest(self, graph: Graph, node: Node, index: Mapping[str, Index]) -> LoopNest:
        """``index``: connector -> indices."""
        reads, writes = graph.reads(node), graph.writes(node)
        return LoopNest(
            self.extents,
            tuple((a, index[c]) for c, a in reads.items()),
            tuple((a, index[c]) for c, a in writes.items()),
        )


def _broadcast(index: Sequence[Dim], shape: Sequence[Dim]) -> Index:
    """The last of ``index``, as many as ``shape`` has dimensions; 0 along those of extent 1."""
    own = index[len(index) - len(shape) :]
    return tuple(0 if same(n, 1) else e for e, n in zip(own, shape))


@describes("Contraction")
def _contraction(graph: Graph, node: Contraction) -> LoopNest:
    reads, loops = graph.reads(node), _Loops()
    out = graph.shape(graph.writes(node)["Y"])
    *batch, i, j = loops.over(*out)
    (k,) = loops.over(graph.shape(reads["A"])[-1])
    operands = {"A": (*batch, i, k), "B": (*batch, k, j), "Bias": (*batch, i, j), "C": (*batch, i, j)}
    index = {c: _broadcast(operands[c], graph.shape(a)) for c, a in reads.items()}
    return loops.nest(graph, node, index | {"Y": (*batch, i, j)})


def _windows(node: Any, outer: Sequence[Any], inner: Sequence[object]) -> Index:
    """Positions in the image of the windows' elements."""
    strides, dilations, begins, _ = node.window(len(outer))
    return tuple(s * o + d * k - b for o, k, s, d, b in zip(outer, inner, strides, dilations, begins))


def _convolution_nest(
    graph: Graph, node: Node, image: str, weight: str, result: str, others: Mapping[str, str]
) -> LoopNest:
    """``others``: connector -> which of the loops' indices it has."""
    names = graph.reads(node) | graph.writes(node)
    loops = _Loops()
    out = blocked.shape_of(graph, node, result)
    count, channels, *kernel = graph.shape(names[weight])
    features: Any = count // node.group
    batch, *outer = loops.over(out[0], *out[2:])
    group, feature, channel = loops.over(node.group, features, channels)
    inner = loops.over(*kernel)
    o, c = group * features + feature, group * channels + channel
    if same(node.group, 1):
        o, c = feature, channel
    elif same(channels, 1) and same(count, node.group):
        o = c = group
    index: dict[str, Index] = {
        image: (batch, c, *_windows(node, outer, inner)),
        weight: (o, 0 if same(channels, 1) else channel, *inner),
        result: (batch, o, *outer),
    }
    index |= {k: index[v] if v != "bias" else (o,) for k, v in others.items()}
    return loops.nest(graph, node, index | {c: _in_blocks(index[c]) for c in node.blocked_connectors(graph)})


def _in_blocks(index: Index) -> Index:
    batch, channel, *place = index
    return (batch, channel // blocked.BLOCK, *place, channel % blocked.BLOCK)


@describes("Convolution")
def _convolution(graph: Graph, node: Convolution) -> LoopNest:
    return _convolution_nest(graph, node, "X", "W", "Y", {**dict.fromkeys("BST", "bias"), "Z": "Y"})


@describes("ConvolutionBackwardData")
def _convolution_data(graph: Graph, node: ConvolutionBackwardData) -> LoopNest:
    return _convolution_nest(graph, node, "dX", "W", "dY", {})


@describes("ConvolutionBackwardWeights")
def _convolution_weights(graph: Graph, node: ConvolutionBackwardWeights) -> LoopNest:
    return _convolution_nest(graph, node, "X", "dW", "dY", {})


def _pool_nest(graph: Graph, node: Node, image: str, result: str) -> LoopNest:
    names, loops = graph.reads(node) | graph.writes(node), _Loops()
    batch, channel, *outer = loops.over(*graph.shape(names[result]))
    inner = loops.over(*node.kernel)
    place = (batch, channel, *outer)
    index = {image: (batch, channel, *_windows(node, outer, inner)), result: place, "Workspace": place}
    return loops.nest(graph, node, index)


@describes("Pool")
def _pool(graph: Graph, node: Pool) -> LoopNest:
    return _pool_nest(graph, node, "X", "Y")


@describes("PoolBackward")
def _pool_backward(graph: Graph, node: PoolBackward) -> LoopNest:
    return _pool_nest(graph, node, "dX", "dY")


@describes("IndexAdd")
def _index_add(graph: Graph, node: IndexAdd) -> LoopNest:
    """Rows keep their own dimensions; which row an index names is known when running."""
    reads, loops = graph.reads(node), _Loops()
    at = loops.over(*graph.shape(reads["Index"]))
    row = loops.over(*graph.shape(graph.writes(node)["dW"])[1:])
    return loops.nest(graph, node, {"Index": at, "dY": (*at, *row), "dW": (None, *row)})

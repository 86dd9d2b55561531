"""Convolutions and pools: images of the batch, channels, and rows of an image with the halo that windows need."""

from __future__ import annotations

import copy

import sympy

from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.nodes.library import (
    Convolution,
    ConvolutionBackwardData,
    ConvolutionBackwardWeights,
    Pool,
    PoolBackward,
)
from daceopt.ir.scalar.dims import Dim, dim
from daceopt.splits.rules import CannotSplit, Division, Piece, box, splits

Axes = dict[str, int]  # operand -> its axis that is split
_SUMS = "a row of dX is a sum over windows of several rows of dY; split batch or channels"


@splits(Convolution)
def convolution_split(graph: Graph, node: Convolution, axis: int) -> Division:
    """Batch, output channels (whole groups, or inside of the only one), or a spatial axis."""
    own = axis % len(graph.shape(graph.writes(node)["Y"]))
    if own == 0:
        return _along(graph, node, {"X": 0, "Z": 0}, {"Y": 0})
    _refuse_blocks(graph, node)
    if own == 1:
        return _channels(graph, node, {"X": 1}, {"W": 0, "B": 0, "S": 0, "T": 0, "Z": 1}, {"Y": 1})
    return _halo(graph, node, own, {"Z": own}, {"Y": own})


@splits(ConvolutionBackwardData)
def backward_data_split(graph: Graph, node: ConvolutionBackwardData, axis: int) -> Division:
    """Batch, or input channels (whole groups, or inside of the only one)."""
    own = axis % len(graph.shape(graph.writes(node)["dX"]))
    if own == 0:
        return _along(graph, node, {"dY": 0}, {"dX": 0})
    _refuse_blocks(graph, node)
    if own != 1:
        raise CannotSplit(f"{node.label}: {_SUMS}")
    if node.group == 1:
        return _along(graph, node, {"W": 1}, {"dX": 1})
    return _channels(graph, node, {"dY": 1, "W": 0}, {}, {"dX": 1})


@splits(ConvolutionBackwardWeights)
def backward_weights_split(graph: Graph, node: ConvolutionBackwardWeights, axis: int) -> Division:
    """Output channels (whole groups, or inside of the only one), or input channels where there is one group."""
    _refuse_blocks(graph, node)
    writes = graph.writes(node)
    own = axis % len(graph.shape(writes["dW"]))
    if own == 0:
        return _channels(graph, node, {"X": 1}, {"dY": 1}, {"dW": 0})
    if own == 1 and node.group == 1:
        return _along(graph, node, {"X": 1}, {"dW": 1})
    expected = "expected output channels, or input channels of one group"
    raise CannotSplit(f"{node.label}: axis {own} of dW; {expected}")


def _refuse_blocks(graph: Graph, node: Node) -> None:
    if images := sorted(node.blocked_connectors(graph)):
        raise CannotSplit(
            f"{node.label}: {' and '.join(images)} in blocks of channels; split the batch, or before that"
        )


@splits(Pool)
def pool_split(graph: Graph, node: Pool, axis: int) -> Division:
    """Batch, channels, or a spatial axis where windows end inside of the padded input."""
    outputs = list(graph.writes(node))
    own = axis % len(graph.shape(graph.writes(node)["Y"]))
    if own < 2:
        return _along(graph, node, {"X": own}, dict.fromkeys(outputs, own))
    if node.ceil_mode:
        beyond = "windows may end outside of the padded input (ceil_mode); split batch or channels"
        raise CannotSplit(f"{node.label}: {beyond}")
    return _halo(graph, node, own, {}, dict.fromkeys(outputs, own))


@splits(PoolBackward)
def pool_backward_split(graph: Graph, node: PoolBackward, axis: int) -> Division:
    """Batch or channels."""
    own = axis % len(graph.shape(graph.writes(node)["dX"]))
    if own >= 2:
        raise CannotSplit(f"{node.label}: {_SUMS}")
    return _along(graph, node, dict.fromkeys(graph.reads(node), own), {"dX": own})


# -------------------------------------------------------------------- the kinds of axes


def _along(graph: Graph, node: Node, operands: Axes, outputs: dict[str, int]) -> Division:
    """The piece reads the same elements along an axis of some operands, and all of the others."""
    reads, writes = graph.reads(node), graph.writes(node)

    def build(b: Builder, piece: Piece) -> None:
        boxes = {c: box(b, piece, n, operands.get(c), piece.start, piece.extent) for c, n in reads.items()}
        graph.add_node(copy.deepcopy(node), boxes, {c: piece.outputs[n] for c, n in writes.items()})

    return Division({writes[c]: k for c, k in outputs.items()}, build)


def _channels(graph: Graph, node: Node, grouped: Axes, operands: Axes, outputs: dict[str, int]) -> Division:
    """Channels of the result: ``operands`` follow them; ``grouped`` operands have the channels of the same groups."""
    reads, writes = graph.reads(node), graph.writes(node)
    if node.group == 1:
        return _along(graph, node, operands, outputs)
    connector, axis = next(iter(outputs.items()))
    channels = graph.shape(writes[connector])[axis]

    def check(start: Dim, extent: Dim) -> str | None:
        has_numbers = all(isinstance(n, int) for n in (channels, start, extent))
        if has_numbers and extent and not (start * node.group % channels or extent * node.group % channels):
            return None
        size = dim(channels / sympy.Integer(node.group))
        return f"{node.group} groups of {size} channels; expected whole groups"

    def build(b: Builder, piece: Piece) -> None:
        twin, size = copy.deepcopy(node), channels // node.group
        first, twin.group = piece.start // size, piece.extent // size
        rest = {c: n for c, n in reads.items() if c not in grouped}
        boxes = {c: box(b, piece, n, operands.get(c), piece.start, piece.extent) for c, n in rest.items()}
        for c, k in grouped.items():
            each = graph.shape(reads[c])[k] // node.group
            boxes[c] = box(b, piece, reads[c], k, first * each, twin.group * each)
        graph.add_node(twin, boxes, {c: piece.outputs[n] for c, n in writes.items()})

    return Division({writes[c]: k for c, k in outputs.items()}, build, check)


def _halo(graph: Graph, node: Node, axis: int, operands: Axes, outputs: dict[str, int]) -> Division:
    """Rows of the image: a piece reads the rows that its windows reach, which overlap with those of its neighbours."""
    reads, writes = graph.reads(node), graph.writes(node)
    size, k = graph.shape(reads["X"])[axis], axis - 2
    if not isinstance(size, int):
        raise CannotSplit(f"{node.label}: axis {axis} of X has {size} elements, which is not known when compiling")
    rank = len(graph.shape(reads["X"])) - 2
    window = graph.shape(reads["W"])[axis] if "W" in reads else node.kernel[k]
    strides, dilations, begins, ends = node.window(rank)

    def reach(start: Dim, extent: Dim) -> tuple[int, int]:
        first = start * strides[k] - begins[k]
        return first, first + (extent - 1) * strides[k] + dilations[k] * (window - 1) + 1

    def check(start: Dim, extent: Dim) -> str | None:
        if not isinstance(start, int) or not isinstance(extent, int):
            return "expected parts whose extents are known when compiling"
        first, last = reach(start, extent)
        if extent == 0 or max(first, 0) >= min(last, size):
            return f"its windows reach elements {first} to {last} of {size}, which is nothing but padding"
        return None

    def build(b: Builder, piece: Piece) -> None:
        first, last = reach(piece.start, piece.extent)
        low, high = max(first, 0), min(last, size)
        twin = copy.deepcopy(node)
        before, behind = list(begins), list(ends)
        before[k], behind[k] = low - first, last - high
        twin.pads = [*before, *behind]
        rest = {c: n for c, n in reads.items() if c != "X"}
        boxes = {c: box(b, piece, n, operands.get(c), piece.start, piece.extent) for c, n in rest.items()}
        boxes["X"] = box(b, piece, reads["X"], axis, low, high - low)
        graph.add_node(twin, boxes, {c: piece.outputs[n] for c, n in writes.items()})

    return Division({writes[c]: n for c, n in outputs.items()}, build, check)

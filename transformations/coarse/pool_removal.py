"""Pools that are means, or nothing at all."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node
from daceopt.ir.scalar.dims import Shape
from daceopt.passes.patterns import Match, Op, PatternRule, op


@dataclass(frozen=True)
class PoolRemoval(PatternRule):
    """A mean where an average pool has one window, which is the whole image; nothing where windows are single elements.

    before:  y = AveragePool(x: (n, c, 7, 7); kernel_shape=[7, 7])      z = MaxPool(x; kernel_shape=[1, 1])
    after:   y = ReduceMean(x, [2, 3]; keepdims=1)                      z = x

    Adaptive pools come as such pools (to one element; to as many as there are). With ``ceil_mode`` the one window may
    be larger than the image, of which alone it is the average. A mean fuses with what it reads, a pool of a library
    does not. Rausch et al., DaCeML, section 5.1.
    """

    thing = "the pool"
    pattern = op("AveragePool|MaxPool|GlobalAveragePool", "x").named("pool")

    def why_not(self, m: Match) -> str | None:
        graph, node = m.graph, m.node("pool")
        if any(n is not None for n in graph.outputs_of(node)[1:]):
            return "the places of the maxima are read"
        if node.op_type == "GlobalAveragePool" or _is_plain(graph, node, graph.shape(m.result)[2:]):
            return None
        return f"its windows {node.attribute('kernel_shape')} are neither the whole image nor single elements"

    def replace(self, m: Match) -> Op | str:
        node, shape = m.node("pool"), m.shape("x")
        if node.op_type != "GlobalAveragePool" and shape == m.graph.shape(m.result):
            return "x"
        return op("ReduceMean", "x", np.arange(2, len(shape), dtype=np.int64), keepdims=1)


def _is_plain(graph: Graph, node: Node, result: Shape) -> bool:
    """Does each window lie in the image, alone or as the whole of it?"""
    image, kernel = graph.shape(graph.operand(node, 0))[2:], tuple(node.attribute("kernel_shape"))
    rank = len(kernel)
    unpadded = not any(node.attribute("pads") or []) and node.attribute("auto_pad", "NOTSET") in ("NOTSET", "VALID")
    dense = set(node.attribute("dilations") or [1]) == {1}
    if not unpadded or not dense or len(image) != rank:
        return False
    if set(kernel) == {1} and set(node.attribute("strides") or [1]) == {1}:
        return True
    return node.op_type == "AveragePool" and (kernel == tuple(image) or _is_covered(image, kernel, result))


def _is_covered(image: Shape, kernel: tuple[int, ...], result: Shape) -> bool:
    """Is there one window, which has all of the image?"""
    covers = all(isinstance(n, int) and 0 < n <= k for n, k in zip(image, kernel, strict=True))
    return covers and set(result) == {1}

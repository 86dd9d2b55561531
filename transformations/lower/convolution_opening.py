"""Compute depthwise convolutions in kernels, which fuse with what is before and behind them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node
from daceopt.ir.nodes.library import Convolution, ConvolutionBackwardData
from daceopt.ops.families.opened_convolutions import open_convolution, why_not_opened
from daceopt.passes.transform import NearMiss, Site, Transformation


@dataclass(frozen=True)
class ConvolutionOpening(Transformation):
    """Make a depthwise convolution, or its gradient for the input, a kernel, fused and scheduled like any other.

    before:  y = Convolution(x, w, group=channels)
    after:   for n, c, i, j: y[n, c, i, j] = w[c, 0, 0, 0] * x[n, c, i, j] + w[c, 0, 0, 1] * x[n, c, i, j + 1] + ...

    A product per weight and element reads memory more than it computes, so that what a library gains by its kernel is
    less than what a pass over the image costs: Rausch et al., DaCeML (ICS 2022), section 6.3, "fused convolution".
    ``taps``: only windows of at most so many elements side by side along one axis, as those over tokens are (0: all).
    """

    level: ClassVar[str] = "lower"  # a choice of what implements it, before layouts are those of a library
    taps: int = 0

    def match_at(self, graph: Graph, node: Node) -> Iterable[Site | NearMiss]:
        if not isinstance(node, Convolution | ConvolutionBackwardData):
            return
        reason = why_not_opened(graph, node) or self._why_not_short(graph, node)
        yield Site(graph, (node,)) if reason is None else NearMiss(node, reason)

    def _why_not_short(self, graph: Graph, node: Convolution | ConvolutionBackwardData) -> str | None:
        extents = graph.shape(graph.reads(node)["W"])[2:]
        strides, dilations, *_ = node.window(len(extents))
        along = [k for k, n in enumerate(extents) if n != 1]
        if not self.taps or (len(along) == 1 and extents[along[0]] <= self.taps and {*strides, *dilations} == {1}):
            return None
        window = " x ".join(map(str, extents))
        return f"windows of {window}, strides {strides}, dilations {dilations}; expected {self.taps} side by side"

    def apply(self, site: Site) -> None:
        open_convolution(site.graph, site.nodes[0])

"""Sum convolutions up where the image that is added to them is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import dace

from daceopt.ir.graph.graph import Graph
from daceopt.ir.nodes.library import Convolution
from daceopt.libs import onednn
from daceopt.passes.transform import NearMiss, Site, Transformation


@dataclass(frozen=True)
class ResidualAccumulation(Transformation):
    """Let the result of a convolution take the memory of its residual, where that is needed no more.

    before:  y = Convolution(x, w, Z=z)                       (reads z, brings y into the caches, writes y)
    after:   y = Convolution(x, w, Z=z, accumulating)         (reads and writes y, which is where z did)

    Only of images with channels innermost: there oneDNN has kernels that add to what is in their result behind
    other operations (docs/decisions/042-relus-in-convolutions.md). Whether the residual ends there is seen when memory
    is planned.
    """

    level: ClassVar[str] = "hardware"
    changes_dataflow: ClassVar[bool] = False
    sites_are_independent: ClassVar[bool] = True

    def match(self, graph: Graph) -> Iterator[Site | NearMiss]:
        for node in graph.nodes():
            if not isinstance(node, Convolution) or node.accumulating or "Z" not in node.operands(graph):
                continue
            reason = _why_not(graph, node)
            yield NearMiss(node, reason) if reason else Site(graph, (node,))

    def apply(self, site: Site) -> None:
        site.nodes[0].accumulating = True


def _why_not(graph: Graph, node: Convolution) -> str | None:
    names = node.operands(graph)
    residual, result = names["Z"], names["Y"]
    if not graph.is_transient(graph.root(residual)[0]):
        return f"{residual} belongs to the caller"
    if {graph.dtype(residual), graph.dtype(result)} != {dace.float32}:
        return f"{residual} and {result} are not float32 both"
    if node.blocked_connectors(graph) or graph.strides(result)[1] != 1:
        return f"channels of {result} are not the innermost axis"
    if graph.is_view(residual) or graph.strides(residual) != graph.strides(result):
        return f"{residual} does not stand as {result} does"
    return None if onednn.is_chosen(graph, node) else "another library computes it"

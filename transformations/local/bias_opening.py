"""Add the biases of convolutions in kernels, where a library does so in a pass of its own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.nodes.library import Convolution
from daceopt.passes.transform import NearMiss, Site, Transformation
from daceopt.transformations.local._epilogues import kept_attributes


@dataclass(frozen=True)
class BiasOpening(Transformation):
    """Take the bias out of a convolution, so that it is added in the kernel that reads the result.

    before:  y = Convolution(x, w, B=b)
    after:   t = Convolution(x, w)    for n, c, h, w: y[n, c, h, w] = t[n, c, h, w] + b[c]
    """

    level: ClassVar[str] = "local"

    def match_at(self, graph: Graph, node: Node) -> Iterable[Site | NearMiss]:
        if not isinstance(node, Convolution) or "B" not in graph.reads(node):
            return
        names = node.operands(graph)
        if node.activation is not None or names.keys() & {"S", "T", "Z"}:
            yield NearMiss(node, "something is done to the result behind the bias")
        elif len({graph.dtype(name) for name in names.values()}) > 1:
            yield NearMiss(node, "operands of several types, of which the bias is added before the result is rounded")
        else:
            yield Site(graph, (node,))

    def apply(self, site: Site) -> None:
        graph, node = site.graph, site.nodes[0]
        reads, out = graph.reads(node), graph.writes(node)["Y"]
        bare = graph.add_array(f"{out}_bare", graph.shape(out), graph.dtype(out), graph.strides(out))
        own_attributes = {p: getattr(node, p) for p in kept_attributes(node)}
        graph.take_out((node,))
        bias = reads.pop("B")
        twin = type(node)(node.label, inputs=list(reads), outputs=["Y"], **own_attributes)
        graph.add_node(twin, reads, {"Y": bare})
        b = Builder(graph)
        spread = b.reshape(bias, (graph.size(bias), *(1 for _ in graph.shape(out)[2:])))
        b.elementwise(lambda y, v: y + v, bare, spread, out=out)

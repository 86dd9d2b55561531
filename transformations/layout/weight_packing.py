"""Prepare the weights of convolutions once for all calls of the program in which they are the same."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node
from daceopt.ir.nodes.library import Convolution, ConvolutionBackwardData, outlasts_calls
from daceopt.passes.transform import Site, Transformation


@dataclass(frozen=True)
class WeightPacking(Transformation):
    """Let convolutions keep weights as their library wants them.

    before:  at each call: y = conv(x, reordered(w))
    after:   at the first call: w' = reordered(w)        at each call: y = conv(x, w')

    The library takes weights in a blocked layout of its own (docs/decisions/dense-libraries.md). The copy lives as long
    as the program is loaded, shared by all threads (Rausch et al., DaCeML, section 5.4: persistent allocation), and
    takes as much memory as the weights. Weights that are inputs, such as parameters, may change between calls, in ways
    that nobody sees: the copy of these is made again when their contents have another digest. Reading them takes a
    fraction of what copying takes; where each call is a training step, which changes them, nothing is kept.
    """

    level: ClassVar[str] = "layout"
    changes_dataflow: ClassVar[bool] = False

    def match_at(self, graph: Graph, node: Node) -> Iterable[Site]:
        if not isinstance(node, (Convolution, ConvolutionBackwardData)) or node.packed:
            return
        if outlasts_calls(graph, graph.reads(node)["W"]):
            yield Site(graph, (node,))

    def apply(self, site: Site) -> None:
        site.nodes[0].packed = True

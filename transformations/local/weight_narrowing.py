"""Round weights to the narrow type in which they are multiplied once for all calls in which they are the same."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from daceopt.errors import Unsupported
from daceopt.ir.fusion.conversions import conversion
from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node
from daceopt.ir.kernel.kernel_node import KernelNode
from daceopt.ir.nodes.library import Contraction, Convolution, ConvolutionBackwardData, outlasts_calls, takes_narrow
from daceopt.libs.base import choose
from daceopt.passes.transform import NearMiss, Site, Transformation
from daceopt.system import cpu_features


@dataclass(frozen=True)
class WeightNarrowing(Transformation):
    """Let products and convolutions of bfloat16 keep what autocast converts at each call.

    before:  at each call: w': bfloat16 = rounded(w)    y = conv(x, reordered(w'))
    after:   at the first call: w' = reordered(rounded(w))    at each call: y = conv(x, w')

    For weights that are constants, or inputs of a program that only infers: a library that prepares weights reads the
    wide ones where their contents have changed (:class:`WeightPacking`), and rounds them as the kernel did. The copy
    takes half as much memory as they.
    """

    level: ClassVar[str] = "local"

    def match_at(self, graph: Graph, node: Node) -> Iterable[Site | NearMiss]:
        if not isinstance(node, (Contraction, Convolution, ConvolutionBackwardData)) or not takes_narrow(node, graph):
            return
        weights = graph.reads(node)[node.weights]
        root, offset = graph.root(weights)
        wide = _source_of(graph, root) if isinstance(offset, int) else None
        if wide is None or not outlasts_calls(graph, wide):
            return
        refused = _why_not(graph, node)
        yield NearMiss(node, refused) if refused else Site(graph, (node,), {"wide": wide})

    def apply(self, site: Site) -> None:
        graph, (node,), wide = site.graph, site.nodes, site["wide"]
        reads, writes, twin = graph.reads(node), graph.writes(node), copy.deepcopy(node)
        weights = reads[node.weights]
        root, offset = graph.root(weights)
        if weights != root:
            wide = graph.add_view(wide, weights, graph.shape(weights), graph.strides(weights), offset)
        twin.packed = True
        graph.take_out([node])
        graph.add_node(twin, {**reads, node.weights: wide}, writes)
        graph.prune()


def _why_not(graph: Graph, node: Node) -> str | None:
    """Why the wide weights cannot be what the node takes; None if they can."""
    if "avx512_bf16" not in cpu_features():
        return "no units for bfloat16: each call would round what a kernel rounds faster"
    if getattr(node, "activation", None):
        return f"activation {node.activation!r}: products of narrow factors are rounded behind it"
    try:
        library = choose(node, graph)
    except Unsupported as error:
        return str(error)
    return None if library.prepares else f"{library.name} does not keep weights"


def _source_of(graph: Graph, name: str) -> str | None:
    """The array of float32 of which ``name`` is a rounded copy, in the same layout."""
    node = graph.producer(name)
    pair = conversion(graph, node) if isinstance(node, KernelNode) and not graph.is_kept(name) else None
    return pair[0] if pair is not None and pair[1] == name else None

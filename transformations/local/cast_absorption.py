"""Let a product write the element type in which its result is wanted."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from daceopt.ir.fusion.conversions import conversion
from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node
from daceopt.ir.kernel.kernel_node import KernelNode
from daceopt.ir.nodes.library import DenseNode, may_write, takes_narrow
from daceopt.passes.transform import NearMiss, Site, Transformation


@dataclass(frozen=True)
class CastAbsorption(Transformation):
    """Leave the conversion of a product's result to the product, whose sums are float32.

    before:  y: bfloat16 = Contraction(a, b)    for i, j: z[i, j] = float32(y[i, j])
    after:   z: float32 = Contraction(a, b)

    Only when nothing else reads y. Gradients of weights that autocast converted have this form; one rounding less. Of
    float16 only what rounds is absorbed: what overflows there stays infinite.
    """

    level: ClassVar[str] = "local"

    def match_at(self, graph: Graph, node: Node) -> Iterable[Site | NearMiss]:
        if not isinstance(node, DenseNode) or not takes_narrow(node, graph):
            return
        for connector, result in graph.writes(node).items():
            readers = graph.all_consumers(result)
            if len(readers) != 1 or not isinstance(readers[0], KernelNode):
                continue
            copy = _converted_copy(graph, node, connector, readers[0])
            if copy is not None:
                yield Site(graph, (node, readers[0]), {"connector": connector, "out": copy})

    def apply(self, site: Site) -> None:
        graph, node = site.graph, site.nodes[0]
        reads, writes = graph.reads(node), graph.writes(node)
        twin = copy.deepcopy(node)
        graph.take_out(site.nodes)
        graph.add_node(twin, reads, {**writes, site["connector"]: site["out"]})


def _converted_copy(graph: Graph, node: DenseNode, connector: str, cast: KernelNode) -> str | None:
    """The array that ``cast`` fills with the result, converted, if it does nothing else."""
    result = graph.writes(node)[connector]
    if graph.is_kept(result) or graph.views_of(result) or graph.is_part(result):
        return None
    pair = conversion(graph, cast)
    if pair is None or pair[0] != result:
        return None
    return pair[1] if may_write(node, connector, graph.dtype(pair[1]), graph) else None

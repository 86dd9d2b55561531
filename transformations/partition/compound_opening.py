"""Open compound operators into primitive kernels, so that no boundary of an operator keeps these apart."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from daceopt import ops
from daceopt.autodiff import splitting
from daceopt.ir.control import region
from daceopt.ir.graph.graph import Graph
from daceopt.ir.kernel.kernel_node import KernelNode
from daceopt.passes.transform import NearMiss, Outcome, Site, Transformation
from daceopt.transformations.lower.lower_operators import LowerOperators


@dataclass(frozen=True)
class CompoundOpening(Transformation):
    """Replace compound operators, and kernels of several statements, by kernels of one statement each.

    before:  y = LogSoftmax(x)
    after:   m = max(x)    s = sum(exp(x - m))    y = x - m - log(s)

    APOLLO (Zhao et al., MLSys 2022, section 3.2): softmax, normalizations, losses and updates of optimizers are opened
    by the lowerings that they have. ``stages``: whether fused kernels are opened, too; those that carry values along a
    loop are not.
    """

    level: ClassVar[str] = "lower"
    sites_are_independent: ClassVar[bool] = True
    stages: bool = True

    def match(self, graph: Graph) -> Iterator[Site | NearMiss]:
        kernels = [n for n in graph.kernels() if self.stages and _has_stages(graph, n)]
        for node in (*graph.operators(), *kernels):
            yield Site(graph, (node,))

    def apply(self, site: Site) -> None:
        (node,) = site.nodes
        if isinstance(node, KernelNode):
            splitting.split(site.graph, node)
        else:
            ops.lower(site.graph, node)

    def run(self, graph: Graph, limit: int | None = None) -> Outcome:
        """Operators in one sweep, as ``lower-operators`` does it."""
        if limit is not None:
            return super().run(graph, limit)
        opened = LowerOperators().run(graph)
        for part in region.everything(graph):
            for node in part.kernels():
                if self.stages and _has_stages(part, node):
                    opened.sites.append(node.label)
                    splitting.split(part, node)
        return opened


def _has_stages(graph: Graph, node: KernelNode) -> bool:
    kernel = node.kernel
    return not kernel.is_tiled and (len(kernel.stages) > 1 or bool(kernel.locals))

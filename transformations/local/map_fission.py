"""Take the statements of a kernel apart again, each a kernel of its own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import ClassVar

from daceopt.autodiff import splitting
from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node
from daceopt.passes.transform import NearMiss, Site, Transformation


@dataclass(frozen=True)
class MapFission(Transformation):
    """Split a kernel of several statements; what passed between them inside becomes an array.

    before:  for i: { t = f(x[i])    y[i] = g(t) }
    after:   for i: t[i] = f(x[i])    for i: y[i] = g(t[i])

    The inverse of ``map-fusion``, for kernels that would be better off in other groups, or that reduce over loops which
    others share (Rausch et al., DaCeML, section 6.3). ``kernel``: labels, with wildcards. ``compound-opening`` does it
    to all kernels.
    """

    level: ClassVar[str] = "local"
    sites_are_independent: ClassVar[bool] = True
    kernel: str = "*"

    def match(self, graph: Graph) -> Iterator[Site | NearMiss]:
        for node in graph.kernels():
            yield from self.match_at(graph, node)

    def match_at(self, graph: Graph, node: Node) -> Iterable[Site | NearMiss]:
        if not fnmatchcase(node.label, self.kernel):
            return
        kernel = node.kernel
        if len(kernel.stages) == 1 and not kernel.locals:
            return
        if kernel.is_tiled or kernel.schedule is not None:
            yield NearMiss(node, "it has tiles or a schedule, which statements by themselves could not keep")
            return
        yield Site(graph, (node,))

    def apply(self, site: Site) -> None:
        splitting.split(site.graph, site.nodes[0])

"""Compute pools in kernels, where no library does, or none does it as fast."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node
from daceopt.ir.nodes.library import Pool, PoolBackward
from daceopt.ops.families.opened_pool_gradients import pool_gradient_kernel
from daceopt.ops.families.opened_windows import pool_kernel
from daceopt.passes.transform import NearMiss, Site, Transformation


@dataclass(frozen=True)
class PoolOpening(Transformation):
    """Make a pool, or its gradient, a kernel, which is fused and scheduled like any other.

    before:  y = Pool(x, kernel=2)
    after:   for n, c, i, j: y[n, c, i, j] = max(x[n, c, 2*i, 2*j], ..., x[n, c, 2*i + 1, 2*j + 1])

    An element of a gradient gathers from the windows that reach it: nothing is added to in memory. ``slow``: only pools
    for which a CPU's library is slower, which takes images one element at a time unless all have channels innermost:
    averages, and maxima of which nobody wants the places (of a gradient each element would compare all the windows that
    reach it).
    """

    level: ClassVar[str] = "local"
    slow: bool = False

    def match_at(self, graph: Graph, node: Node) -> Iterable[Site | NearMiss]:
        if not isinstance(node, Pool | PoolBackward):
            return
        reason = _why_fast(graph, node) if self.slow else None
        if reason is not None:
            yield NearMiss(node, reason)
            return
        kernel = pool_kernel(graph, node) if isinstance(node, Pool) else pool_gradient_kernel(graph, node)
        if isinstance(kernel, str):
            yield NearMiss(node, kernel)
        else:
            yield Site(graph, (node,), {"kernel": kernel})

    def apply(self, site: Site) -> None:
        site.graph.remove(site.nodes[0])
        site.graph.add_kernel(site["kernel"])


def _why_fast(graph: Graph, node: Pool | PoolBackward) -> str | None:
    """Why the library is as fast as a kernel; None where it is not."""
    names = graph.reads(node) | graph.writes(node)
    if "Workspace" in names:
        return "the places of maxima are kept"
    by_channels = all(graph.strides(name)[1] == 1 for name in names.values())
    return "an image in which pixels are not neighbours" if by_channels else None

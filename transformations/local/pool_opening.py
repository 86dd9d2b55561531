"""Compute pools in kernels, where no library does."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from daceopt.ir.graph import Graph
from daceopt.ir.nodes.library import Pool, PoolBackward
from daceopt.ops.families.opened_pool_gradients import pool_gradient_kernel
from daceopt.ops.families.opened_windows import pool_kernel
from daceopt.passes.transform import NearMiss, Site, Transformation


@dataclass(frozen=True)
class PoolOpening(Transformation):
    """Make a pool, or its gradient, a kernel, which is fused and scheduled like any other.

    before:  y = Pool(x, kernel=2)
    after:   for n, c, i, j: y[n, c, i, j] = max(x[n, c, 2*i, 2*j], ..., x[n, c, 2*i + 1, 2*j + 1])

    An element of a gradient gathers from the windows that reach it: nothing is added to in memory.
    """

    level: ClassVar[str] = "local"

    def match_at(self, graph: Graph, node: Any) -> Iterable[Site | NearMiss]:
        if not isinstance(node, Pool | PoolBackward):
            return
        kernel = pool_kernel(graph, node) if isinstance(node, Pool) else pool_gradient_kernel(graph, node)
        if isinstance(kernel, str):
            yield NearMiss(node, kernel)
        else:
            yield Site(graph, (node,), {"kernel": kernel})

    def apply(self, site: Site) -> None:
        site.graph.remove(site.nodes[0])
        site["kernel"].emit(site.graph)

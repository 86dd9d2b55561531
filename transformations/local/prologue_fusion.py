"""Compute the left operand of a product panel by panel of rows, where the product takes it from the cache."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import dace

from daceopt.errors import DaceoptError, Unsupported
from daceopt.ir.access.dataflow import is_bijective
from daceopt.ir.fusion.inlining import why_not_inlined
from daceopt.ir.fusion.product_panels import with_prologue
from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node
from daceopt.ir.graph.view_index import source_index
from daceopt.ir.kernel.kernel import Kernel, param
from daceopt.ir.kernel.kernel_node import KernelNode
from daceopt.ir.nodes.library import Contraction
from daceopt.passes.transform import NearMiss, Site, Transformation
from daceopt.transformations.local.panel_fusion import why_not_order

_MOST = 1 << 17  # elements of a panel of rows: half a megabyte of float32, which second-level caches hold


@dataclass(frozen=True)
class PrologueFusion(Transformation):
    """Put a point-wise kernel in front of a product into the loops of the product.

    before:  for i, k: a[i, k] = gelu(x[i, k])    y = Contraction(a, b)
    after:   for panels of rows:
                 for i, k: rows[i, k] = gelu(x[i, k])
                 for panels of columns:
                     for i, j, k: tile[i, j] += rows[i, k] * b[k, j]
                     for i, j: y[i, j] = tile[i, j]

    The counterpart of ``panel-fusion``: a passes through no memory, unless somebody else reads it. The sum
    becomes a ``micro-kernel-call``, slower than a library's product: worth it where there are few columns.
    ``rows`` and ``columns``: the size of a panel.
    """

    level: ClassVar[str] = "local"
    rows: int = 64
    columns: int = 64

    def __post_init__(self) -> None:
        if min(self.rows, self.columns) < 1:
            raise DaceoptError(f"rows={self.rows}, columns={self.columns}: expected 1 or more")

    def match_at(self, graph: Graph, node: Node) -> Iterable[Site | NearMiss]:
        if not isinstance(node, Contraction):
            return
        producer = graph.producer(graph.reads(node)["A"])
        if not isinstance(producer, KernelNode):
            return
        try:
            first = producer.kernel
            reason = _why_not(graph, node, first, self.rows)
        except Unsupported as error:
            reason = str(error)
        if reason is not None:
            yield NearMiss(node, reason)
            return
        fused = with_prologue(graph, first, node, self.rows, self.columns)
        yield Site(graph, (producer, node), {"kernel": fused})

    def apply(self, site: Site) -> None:
        site.graph.take_out(site.nodes)
        site.graph.add_kernel(site["kernel"].rename_locals_apart(site.graph))


def _why_not(graph: Graph, node: Contraction, first: Kernel, rows: int) -> str | None:
    reads, product = graph.reads(node), graph.writes(node)["Y"]
    a, b = reads["A"], reads["B"]
    if len(reads) > 2 or node.activation is not None:
        return "the product has a bias, a residual or an activation of its own"
    if {graph.dtype(n) for n in (a, b, product)} not in ({dace.float32}, {dace.float64}):
        return "micro-kernels take float32 and float64"
    if graph.shape(a)[:-2] != graph.shape(product)[:-2] or len(graph.shape(b)) < 2:
        return f"a left operand of shape {graph.shape(a)} is used by several products of a batch"
    depth = graph.shape(a)[-1]
    if not isinstance(depth, int) or depth * rows > _MOST or 0 in (*graph.shape(a), *graph.shape(b)):
        return f"panels of {rows} rows of {depth} elements; expected {_MOST} at most, and some"
    if graph.strides(b)[-1] != 1:
        return "the rows of the right operand are not contiguous"
    return why_not_inlined(graph, first) or _why_not_operand(graph, node, first, a)


def _why_not_operand(graph: Graph, node: Contraction, first: Kernel, a: str) -> str | None:
    written = {access.array for access in first.writes()}
    array, *parts = graph.sources(a)
    if parts or array not in written or len(written) > 1:
        return f"{a} is one of several results, or written in parts"
    if len([n for n in graph.all_consumers(array) if n is node]) != 1 or graph.root(graph.reads(node)["B"])[0] == array:
        return f"{array} is both operands of the product"
    index = source_index(graph, a, array, [param(k) for k in range(len(graph.shape(a)))])
    if index is None:
        return f"{a} has no index for each dimension of {array}"
    extents = dict(zip(map(param, range(len(graph.shape(a)))), graph.shape(a)))
    if _is_needed(graph, array, node) and not is_bijective(index, graph.shape(array), extents):
        return f"others read {array}, of which the product takes a part"
    return why_not_order(graph, array, node)


def _is_needed(graph: Graph, array: str, node: Node) -> bool:
    return graph.is_kept(array) or any(n is not node for n in graph.all_consumers(array))

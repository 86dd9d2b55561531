"""Apply a point-wise kernel to each tile of the product that feeds it, while the tile is in the cache."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import dace

from daceopt.ir.fusion.product_panels import with_epilogue
from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node
from daceopt.ir.kernel.kernel import Kernel
from daceopt.ir.kernel.kernel_node import KernelNode
from daceopt.ir.nodes.library import Contraction
from daceopt.passes.transform import NearMiss, Site, Transformation


@dataclass(frozen=True)
class PanelFusion(Transformation):
    """Compute a product in panels of columns, and in each of them panel by panel of rows with what follows the product.

    before:  y = Contraction(a, b)    for i, j: z[i, j] = gelu(y[i, j] + c[j])
    after:   for panels of columns:
                 for k, j: panel[k, j] = b[k, j]
                 for panels of rows:
                     for i, j, k: tile[i, j] += a[i, k] * panel[k, j]
                     for i, j: z[i, j] = gelu(tile[i, j] + c[j])

    The sum becomes a ``micro-kernel-call``. Where somebody else reads y, or the backward graph does, it is written as
    well. ``rows`` and ``columns``: the size of a panel, as measured (docs/decisions/014-carried-values.md).
    """

    level: ClassVar[str] = "local"
    rows: int = 64
    columns: int = 64

    def match_at(self, graph: Graph, node: Node) -> Iterable[Site | NearMiss]:
        if not isinstance(node, Contraction):
            return
        product = graph.writes(node)["Y"]
        readers = [n for n in graph.consumers(product) if isinstance(n, KernelNode)]
        matches = [self._at(graph, node, product, reader) for reader in readers]
        sites = [f for f in matches if isinstance(f, Site)]
        yield from sites[:1] or matches

    def _at(self, graph: Graph, node: Contraction, product: str, reader: KernelNode) -> Site | NearMiss:
        kernel = reader.kernel
        reason = why_no_panels(graph, node, kernel) or why_not_order(graph, product, reader)
        if reason is not None:
            return NearMiss(node, reason)
        fused = with_epilogue(graph, node, kernel, self.rows, self.columns)
        return Site(graph, (node, reader), {"kernel": fused})

    def apply(self, site: Site) -> None:
        graph = site.graph
        graph.take_out(site.nodes)
        graph.add_kernel(site["kernel"].rename_locals_apart(graph))


def why_no_panels(graph: Graph, node: Contraction, kernel: Kernel) -> str | None:
    """Why ``kernel``, which reads the product of ``node``, cannot be applied to its tiles; it may be a planned one."""
    product = graph.writes(node)["Y"]
    return _why_not_product(graph, node, product) or _why_not_reader(graph, kernel, product)


def _why_not_product(graph: Graph, node: Contraction, product: str) -> str | None:
    a, b = graph.reads(node)["A"], graph.reads(node)["B"]
    if len(graph.reads(node)) > 2 or node.activation is not None:
        return "the product has a bias, a residual or an activation of its own"
    if graph.dtype(product) not in (dace.float32, dace.float64):
        return f"a product of {graph.dtype(product)}; micro-kernels take float32 and float64"
    if not isinstance(graph.shape(a)[-1], int) or 0 in (*graph.shape(a), *graph.shape(b)):
        return f"products over shapes {graph.shape(a)} and {graph.shape(b)}; expected elements, and a known depth"
    return None if graph.strides(a)[-1] == 1 else "the rows of the left operand are not contiguous"


def _why_not_reader(graph: Graph, kernel: Kernel, product: str) -> str | None:
    """Is the kernel one statement that visits each element of the product once, and reduces nothing?"""
    if len(kernel.stages) != 1 or kernel.locals or kernel.is_tiled:
        return "the reader has several stages"
    stage = kernel.stages[0]
    if any(a.wcr for a in stage.writes.values()):
        return "the reader reduces"
    roots = [graph.root(a.array)[0] for a in stage.reads.values()]
    indices = {a.index for a in stage.reads.values() if a.array == product}
    if len(indices) != 1 or roots.count(product) != sum(a.array == product for a in stage.reads.values()):
        return "the reader has the product at several places"
    (index,) = indices
    params = [e for e in index if e != 0]  # extents of 1 have no loop
    if len(params) != len(stage.params) or set(params) != set(stage.params):
        return "the reader does not visit each element of the product once"
    if 0 in index[-2:]:
        return f"a product of shape {graph.shape(product)}; expected several rows and columns"
    return None


def why_not_order(graph: Graph, product: str, reader: Node) -> str | None:
    """Nobody else who takes ``product`` may come before ``reader``, with which what computes it becomes one."""
    waiting = [n for n in graph.all_consumers(product) if n is not reader]
    seen = set(waiting)
    while waiting:
        for name in filter(None, graph.outputs_of(waiting.pop())):
            for node in graph.all_consumers(name):
                if node is reader:
                    return f"the reader needs what another reader of {product} computes"
                if node not in seen:
                    seen.add(node)
                    waiting.append(node)
    return None

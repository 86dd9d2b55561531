"""Compute the left operand of a product panel by panel of rows, where the product takes it from the cache."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import dace
import sympy

from daceopt.errors import DaceoptError, Unsupported
from daceopt.ir.access.dataflow import is_bijective
from daceopt.ir.data.provenance import fused_label
from daceopt.ir.fusion.inlining import iteration_writing, why_not_inlined
from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node
from daceopt.ir.graph.view_index import source_index
from daceopt.ir.kernel.kernel import Access, Kernel, Stage, param
from daceopt.ir.kernel.kernel_node import KernelNode
from daceopt.ir.kernel.tasklet import Assignment
from daceopt.ir.nodes.library import Contraction
from daceopt.ir.scalar import scalar
from daceopt.ir.scalar.dims import Dim, Shape, dim
from daceopt.ir.scalar.tiles import blocks, tile_extent
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
        product = _Product(graph, node, first, self.rows, self.columns)
        yield Site(graph, (producer, node), {"kernel": product.kernel()})

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


class _Product:
    """The kernel that does both: its parameters are the batch, panels of rows and columns, and places in them."""

    def __init__(self, graph: Graph, node: Contraction, first: Kernel, rows: int, columns: int):
        self._graph, self._node, self._first = graph, node, first
        self._a, self._b, self._y = graph.reads(node)["A"], graph.reads(node)["B"], graph.writes(node)["Y"]
        *lead, m, n = graph.shape(self._y)
        depth = int(graph.shape(self._a)[-1])
        rows, columns = (min(s, e) if isinstance(e, int) else s for s, e in ((rows, m), (columns, n)))
        self._batch = [param(k) for k in range(len(lead))]
        self._r, self._c, self._i, self._j, self._k = (param(len(lead) + k) for k in range(5))
        self._row, self._column = dim(rows * self._r + self._i), dim(columns * self._c + self._j)
        self._extents: dict[Any, Dim] = dict(zip(self._batch, lead))
        self._extents |= {self._r: blocks(m, rows), self._c: blocks(n, columns)}
        self._extents |= {
            self._i: tile_extent(m, rows, self._r),
            self._j: tile_extent(n, columns, self._c),
            self._k: depth,
        }
        self._locals: dict[str, Shape] = {"rows": (rows, depth), "tile": (rows, columns)}

    def kernel(self) -> Kernel:
        dtype, outer = self._graph.dtype(self._y), (*self._batch, self._r)
        stages = [self._prologue(outer), self._sum((*outer, self._c)), self._result((*outer, self._c))]
        local = {name: (dtype, shape) for name, shape in self._locals.items()}
        label = fused_label(self._first.label, self._node.label)
        return Kernel(label, self._extents, stages, outer, local, serial=(self._c,))

    def _prologue(self, outer: tuple[Any, ...]) -> Stage:
        """What the first kernel does for a panel of rows; its array as well, where others read that."""
        graph, (stage,) = self._graph, self._first.stages
        ((connector, access),) = stage.writes.items()
        place = (*self._batch, self._row, self._k)
        index = source_index(graph, self._a, access.array, place)
        assert index is not None
        here = stage.subs(iteration_writing(self._first, access, index), (*outer, self._i, self._k))
        local = Access("rows", (self._i, self._k))
        if not _is_needed(graph, access.array, self._node):
            return replace(here, writes={connector: local})
        dtype = graph.dtype(access.array)
        kept = Assignment(scalar.symbol("kept_row", dtype), scalar.symbol(connector, dtype), dtype)
        writes = {connector: local, "kept_row": replace(access, index=tuple(map(dim, index)))}
        return replace(here, writes=writes, assignments=(*here.assignments, kept))

    def _sum(self, around: tuple[Any, ...]) -> Stage:
        lead = self._graph.shape(self._b)[:-2]
        own = self._batch[len(self._batch) - len(lead) :]
        batch = tuple(0 if n == 1 else p for n, p in zip(lead, own))
        reads = {
            "a": Access("rows", (self._i, self._k)),
            "b": Access(self._b, (*batch, self._k, self._column)),
        }
        return self._stage((*around, self._i, self._j, self._k), reads, Access("tile", (self._i, self._j), "sum"))

    def _result(self, around: tuple[Any, ...]) -> Stage:
        reads = {"v": Access("tile", (self._i, self._j))}
        return self._stage((*around, self._i, self._j), reads, Access(self._y, (*self._batch, self._row, self._column)))

    def _stage(self, params: tuple[Any, ...], reads: dict[str, Access], write: Access) -> Stage:
        """The product of what is read; of the tile, times the factor of the product."""
        dtype = self._graph.dtype(self._y)
        value = sympy.Mul(*(scalar.symbol(c, dtype) for c in reads))
        if "v" in reads and self._node.alpha != 1:
            value = value * sympy.Float(self._node.alpha)
        return Stage(params, reads, {"o": write}, (Assignment(scalar.symbol("o", dtype), value, dtype),))

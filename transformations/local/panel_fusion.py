"""Apply a point-wise kernel to each tile of the product that feeds it, while the tile is in the cache."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import dace
import sympy

from daceopt.ir.data.provenance import fused_label
from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node
from daceopt.ir.kernel.kernel import Access, Kernel, Stage, param
from daceopt.ir.kernel.kernel_node import KernelNode
from daceopt.ir.kernel.tasklet import Assignment
from daceopt.ir.nodes.library import Contraction
from daceopt.ir.scalar import scalar
from daceopt.ir.scalar.dims import Dim, Shape, dim
from daceopt.ir.scalar.tiles import blocks, tile_extent
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
        panels = _Panels(graph, node, kernel, product, self.rows, self.columns)
        return Site(graph, (node, reader), {"kernel": panels.kernel()})

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
    walked = [e for e in index if e != 0]  # extents of 1 have no loop
    if len(walked) != len(stage.params) or set(walked) != set(stage.params):
        return "the reader does not visit each element of the product once"
    if 0 in index[-2:]:
        return f"a product of shape {graph.shape(product)}; expected several rows and columns"
    return None


def why_not_order(graph: Graph, product: str, reader: Any) -> str | None:
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


class _Panels:
    """The kernel that does both: its parameters are the batch, panels of columns and rows, and places in them."""

    def __init__(self, graph: Graph, node: Contraction, reader: Kernel, product: str, rows: int, columns: int):
        self._graph, self._node, self._reader, self._product = graph, node, reader, product
        self._a, self._b = graph.reads(node)["A"], graph.reads(node)["B"]
        *self._lead, m, n = graph.shape(product)
        self._rows, self._columns = (min(s, e) if isinstance(e, int) else s for s, e in ((rows, m), (columns, n)))
        count = len(self._lead)
        self._batch = [param(k) for k in range(count)]
        self._column_panel, self._row_panel, self._i, self._j, self._k = (param(count + k) for k in range(5))
        self._row = dim(self._rows * self._row_panel + self._i)
        self._column = dim(self._columns * self._column_panel + self._j)
        self._extents: dict[Any, Dim] = dict(zip(self._batch, self._lead))
        self._extents |= {self._column_panel: blocks(n, self._columns), self._row_panel: blocks(m, self._rows)}
        self._extents |= {
            self._i: tile_extent(m, self._rows, self._row_panel),
            self._j: tile_extent(n, self._columns, self._column_panel),
        }
        self._extents |= {self._k: graph.shape(self._a)[-1]}

    def kernel(self) -> Kernel:
        graph = self._graph
        dtype, depth = graph.dtype(self._product), int(graph.shape(self._a)[-1])
        local: dict[str, tuple[Any, Shape]]
        local = {"panel": (dtype, (depth, self._columns)), "tile": (dtype, (self._rows, self._columns))}
        own = [p for p in self._batch if p in self._place(self._b)]
        outer = (*own, self._column_panel)
        serial = (*(p for p in self._batch if p not in own), self._row_panel)
        stages = [self._pack(outer), self._sum((*outer, *serial)), self._pointwise((*outer, *serial))]
        label = fused_label(self._node.label, self._reader.label)
        return Kernel(label, self._extents, stages, outer, local, serial=serial)

    def _place(self, operand: str) -> tuple[Any, ...]:
        """The operand's leading index: extents of 1 are the same for the whole batch."""
        lead = self._graph.shape(operand)[:-2]
        own = self._batch[len(self._batch) - len(lead) :]
        return tuple(0 if n == 1 else p for n, p in zip(lead, own))

    def _stage(self, params: tuple[Any, ...], reads: dict[str, Access], write: Access, expr: Any) -> Stage:
        dtype = self._graph.dtype(self._product)
        value = expr(*(scalar.symbol(c, dtype) for c in reads))
        return Stage(params, reads, {"o": write}, (Assignment(scalar.symbol("o", dtype), value, dtype),))

    def _pack(self, outer: tuple[Any, ...]) -> Stage:
        """Along the rows of b where they are contiguous, else along its columns."""
        source = Access(self._b, (*self._place(self._b), self._k, self._column))
        inner = (self._k, self._j) if self._graph.strides(self._b)[-1] == 1 else (self._j, self._k)
        return self._stage((*outer, *inner), {"b": source}, Access("panel", (self._k, self._j)), lambda b: b)

    def _sum(self, around: tuple[Any, ...]) -> Stage:
        reads = {
            "a": Access(self._a, (*self._place(self._a), self._row, self._k)),
            "b": Access("panel", (self._k, self._j)),
        }
        tile = Access("tile", (self._i, self._j), "sum")
        return self._stage((*around, self._i, self._j, self._k), reads, tile, lambda a, b: a * b)

    def _pointwise(self, around: tuple[Any, ...]) -> Stage:
        """What the reader does, on the tile; and the product itself where it is needed."""
        stage, tile = self._reader.stages[0], Access("tile", (self._i, self._j))
        index = next(a.index for a in stage.reads.values() if a.array == self._product)
        here = (*self._batch, self._row, self._column)
        mapping: dict[Any, Any] = {old: new for old, new in zip(index, here) if old != 0}
        unit = {p: sympy.S.Zero for p, n in zip(self._batch, self._lead) if n == 1}
        stage = stage.subs(mapping, (*(p for p in around if p not in unit), self._i, self._j))
        dtype = self._graph.dtype(self._product)
        raw = scalar.symbol("raw_product", dtype)
        conns = [c for c, a in stage.reads.items() if a.array == self._product]
        scaled = [Assignment(scalar.symbol(c, dtype), raw * sympy.Float(self._node.alpha), dtype) for c in conns]
        if self._node.alpha == 1:
            scaled = [replace(a, expr=raw) for a in scaled]
        reads = {c: a for c, a in stage.reads.items() if c not in conns} | {"raw_product": tile}
        writes, code = dict(stage.writes), [*scaled, *stage.assignments]
        if self._is_needed():
            whole = scalar.symbol("whole_product", dtype)
            code.append(Assignment(whole, scaled[0].symbol, dtype))
            writes["whole_product"] = Access(self._product, here)
        return Stage((*around, self._i, self._j), reads, writes, tuple(code))

    def _is_needed(self) -> bool:
        return self._graph.is_kept(self._product) or len(self._graph.all_consumers(self._product)) > 1

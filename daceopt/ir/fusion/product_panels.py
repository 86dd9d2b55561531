"""A product in panels, and what a point-wise kernel does to its operand or its result, as one kernel.

The sum of a tile is what a micro-kernel computes; one kind of panels is walked in order inside of the other.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeAlias

import sympy

from daceopt.ir.data.provenance import fused_label
from daceopt.ir.fusion.inlining import iteration_writing
from daceopt.ir.fusion.joining import place_read
from daceopt.ir.graph.graph import Graph
from daceopt.ir.kernel.kernel import Access, Kernel, Stage
from daceopt.ir.kernel.tasklet import Assignment
from daceopt.ir.nodes.library import Contraction
from daceopt.ir.scalar import scalar
from daceopt.ir.scalar.dims import Dim, Shape, dim
from daceopt.ir.scalar.symbols import param
from daceopt.ir.scalar.tiles import blocks, tile_extent
from daceopt.ir.schedule.schedule import Param

Params: TypeAlias = tuple[Param, ...]


def with_prologue(graph: Graph, first: Kernel, node: Contraction, rows: int, columns: int) -> Kernel:
    """What ``first`` does for a panel of rows of the left operand, once, and then all columns of the product.

    after:   for panels of rows: { rows[i, k] = first    for panels of columns: { tile[i, j] += rows[i, k] * b[k, j]
                                                                                  y[i, j] = tile[i, j] } }
    """
    panels = _Panels(graph, node, rows, columns, rows_outside=True)
    outer, serial = (*panels.batch, panels.row_panel), (panels.column_panel,)
    around, i, j, k = (*outer, *serial), panels.i, panels.j, panels.k
    total = panels.sum(around, Access("rows", (i, k)), panels.element(panels.b, k, panels.column))
    tile, target = {"v": Access("tile", (i, j))}, Access(panels.y, (*panels.batch, panels.row, panels.column))
    stages = [_of_rows(panels, first, outer), total, panels.stage((*around, i, j), tile, target, node.alpha)]
    label = fused_label(first.label, node.label)
    return panels.kernel(label, stages, outer, serial, "rows", (panels.rows, panels.depth))


def _of_rows(panels: _Panels, first: Kernel, outer: Params) -> Stage:
    """What the first kernel does for a panel of rows; its array as well, where others read that."""
    (stage,) = first.stages
    ((connector, access),) = stage.writes.items()
    read = Access(panels.a, (*panels.batch, panels.row, panels.k))
    place = place_read(panels.graph, read, {access.array})
    assert place is not None
    here = stage.subs(iteration_writing(first, access, place[1]), (*outer, panels.i, panels.k))
    here = replace(here, writes={connector: Access("rows", (panels.i, panels.k))})
    is_needed = panels.is_needed(access.array)
    return here.writing_twice(connector, replace(access, index=place[1])) if is_needed else here


def with_epilogue(graph: Graph, node: Contraction, reader: Kernel, rows: int, columns: int) -> Kernel:
    """A panel of columns of the right operand side by side, once, and then for all rows of the product what ``reader``
    does; the product itself as well, where others read that.

    after:   for panels of columns: { panel[k, j] = b[k, j]    for panels of rows: { tile[i, j] += a[i, k] * panel[k, j]
                                                                                     reader } }
    """
    panels = _Panels(graph, node, rows, columns, rows_outside=False)
    j, k = panels.j, panels.k
    own = tuple(p for p in panels.batch if p in panels.lead(panels.b))
    outer = (*own, panels.column_panel)
    serial = (*(p for p in panels.batch if p not in own), panels.row_panel)
    around, panel = (*outer, *serial), Access("panel", (k, j))
    inner = (k, j) if graph.strides(panels.b)[-1] == 1 else (j, k)  # along what is contiguous
    packed = panels.stage((*outer, *inner), {"b": panels.element(panels.b, k, panels.column)}, panel)
    total = panels.sum(around, panels.element(panels.a, panels.row, k), panel)
    stages, label = [packed, total, _behind(panels, reader, around)], fused_label(node.label, reader.label)
    return panels.kernel(label, stages, outer, serial, "panel", (panels.depth, panels.columns))


def _behind(panels: _Panels, reader: Kernel, around: Params) -> Stage:
    """What the reader does, on the tile; and the product itself where it is needed."""
    (stage,), dtype = reader.stages, panels.dtype
    conns = [c for c, a in stage.reads.items() if a.array == panels.y]
    here = (*panels.batch, panels.row, panels.column)
    mapping: dict[sympy.Symbol, sympy.Expr] = {
        old: new for old, new in zip(stage.reads[conns[0]].index, here) if old != 0
    }
    unit = {p for p in panels.batch if panels.extents[p] == 1}
    stage = stage.subs(mapping, (*(p for p in around if p not in unit), panels.i, panels.j))
    raw = scalar.symbol("raw_product", dtype)
    value = raw if panels.node.alpha == 1 else raw * sympy.Float(panels.node.alpha)
    code = [*(Assignment(scalar.symbol(c, dtype), value, dtype) for c in conns), *stage.assignments]
    reads = {c: a for c, a in stage.reads.items() if c not in conns}
    reads["raw_product"] = Access("tile", (panels.i, panels.j))
    writes = dict(stage.writes)
    if panels.is_needed(panels.y):
        whole = scalar.symbol("whole_product", dtype)
        code.append(Assignment(whole, scalar.symbol(conns[0], dtype), dtype))
        writes["whole_product"] = Access(panels.y, here)
    return Stage((*around, panels.i, panels.j), reads, writes, tuple(code))


class _Panels:
    """The parameters: the batch, panels of rows and of columns, and places in them."""

    def __init__(self, graph: Graph, node: Contraction, rows: int, columns: int, rows_outside: bool):
        self.graph, self.node = graph, node
        self.a, self.b, self.y = graph.reads(node)["A"], graph.reads(node)["B"], graph.writes(node)["Y"]
        *lead, m, n = graph.shape(self.y)
        self.dtype, self.depth = graph.dtype(self.y), int(graph.shape(self.a)[-1])
        self.rows, self.columns = (min(s, e) if isinstance(e, int) else s for s, e in ((rows, m), (columns, n)))
        self.batch = tuple(param(k) for k in range(len(lead)))
        outside, inside, self.i, self.j, self.k = (param(len(lead) + k) for k in range(5))
        self.row_panel, self.column_panel = (outside, inside) if rows_outside else (inside, outside)
        self.row, self.column = dim(self.rows * self.row_panel + self.i), dim(self.columns * self.column_panel + self.j)
        counts = {self.row_panel: blocks(m, self.rows), self.column_panel: blocks(n, self.columns)}
        self.extents: dict[Param, Dim] = {**dict(zip(self.batch, lead)), **{p: counts[p] for p in (outside, inside)}}
        self.extents[self.i] = tile_extent(m, self.rows, self.row_panel)
        self.extents[self.j] = tile_extent(n, self.columns, self.column_panel)
        self.extents[self.k] = self.depth

    def kernel(
        self, label: str, stages: list[Stage], outer: Params, serial: Params, row_local: str, shape: Shape
    ) -> Kernel:
        """``row_local``: the local beside the tile, of which each iteration of ``outer`` has one."""
        local = {row_local: (self.dtype, shape), "tile": (self.dtype, (self.rows, self.columns))}
        return Kernel(label, self.extents, stages, outer, local, serial=serial)

    def lead(self, operand: str) -> tuple[Any, ...]:
        """The operand's leading index: extents of 1 are the same for the whole batch."""
        extents = self.graph.shape(operand)[:-2]
        own = self.batch[len(self.batch) - len(extents) :]
        return tuple(0 if n == 1 else p for n, p in zip(extents, own))

    def element(self, operand: str, row: object, column: object) -> Access:
        return Access(operand, (*self.lead(operand), row, column))

    def is_needed(self, array: str) -> bool:
        """Does anything but the kernel read it?"""
        return self.graph.is_kept(array) or len(self.graph.all_consumers(array)) > 1

    def sum(self, around: Params, a: Access, b: Access) -> Stage:
        tile = Access("tile", (self.i, self.j), "sum")
        return self.stage((*around, self.i, self.j, self.k), {"a": a, "b": b}, tile)

    def stage(self, params: Params, reads: dict[str, Access], write: Access, factor: float = 1) -> Stage:
        """The product of what is read, times ``factor``."""
        value = sympy.Mul(*(scalar.symbol(c, self.dtype) for c in reads))
        value = value if factor == 1 else value * sympy.Float(factor)
        return Stage(params, reads, {"o": write}, (Assignment(scalar.symbol("o", self.dtype), value, self.dtype),))

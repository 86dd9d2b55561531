"""Products of tiles followed by a point-wise statement on the tile."""

from __future__ import annotations

from typing import Any

import dace
import sympy

from daceopt.ir.graph.graph import Graph
from daceopt.ir.kernel.kernel import Access, Kernel, Stage, param
from daceopt.ir.kernel.tasklet import Assignment
from daceopt.ir.scalar import scalar
from daceopt.ir.scalar.tiles import blocks, tile_extent

ROWS, COLUMNS, M, N, K = (param(k) for k in range(5))
SIZE = dace.symbolic.symbol("n", dace.int64)
Made = tuple[Graph, Any]


def tiled_product(m: Any = 70, n: int = 50, k: int = 33, size: int = 32, dtype: Any = dace.float32) -> Made:
    """y = tanh(a @ b), in tiles of ``size`` rows and columns, of which the last ones are partial."""
    graph = Graph("tiled_product")
    a, b = graph.add_input("a", (m, k), dtype), graph.add_input("b", (k, n), dtype)
    y = graph.add_array("y", (m, n), dtype)
    if not isinstance(m, int):
        graph.symbols["n"] = (a, 0)
    row, column, tile = size * ROWS + M, size * COLUMNS + N, Access("tile", (M, N))
    s, t, o, r = (scalar.symbol(name, dtype) for name in "stor")
    product = Stage(
        (ROWS, COLUMNS, M, N, K),
        {"s": Access(a, (row, K)), "t": Access(b, (K, column))},
        {"o": Access("tile", (M, N), "sum")},
        (Assignment(o, s * t, dtype),),
    )
    pointwise = Stage(
        (ROWS, COLUMNS, M, N), {"r": tile}, {"o": Access(y, (row, column))}, (Assignment(o, sympy.tanh(r), dtype),)
    )
    extents = {
        ROWS: blocks(m, size),
        COLUMNS: blocks(n, size),
        M: tile_extent(m, size, ROWS),
        N: tile_extent(n, size, COLUMNS),
    }
    local = {"tile": (dtype, (size, size))}
    graph.add_kernel(Kernel("tiles", {**extents, K: k}, [product, pointwise], (ROWS, COLUMNS), local))
    graph.add_output(y)
    return graph, graph.kernels()[0]

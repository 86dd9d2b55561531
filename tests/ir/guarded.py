"""Kernels whose statements run behind guards: small ones side by side in one parallel loop."""

from __future__ import annotations

from typing import Any

import dace
import numpy as np
import sympy

from daceopt.ir.edits import schedule_edits as edits
from daceopt.ir.graph.graph import Graph
from daceopt.ir.kernel.kernel import Access, Kernel, Stage, param
from daceopt.ir.kernel.tasklet import Assignment
from daceopt.ir.scalar import scalar
from daceopt.ir.scalar.symbols import size
from daceopt.ir.schedule.schedule import Tree

F = dace.float32
OUT = scalar.symbol("o", F)
V = scalar.symbol("v", F)
ROW, COLUMN, LINE, TERM, PLACE = (param(k) for k in range(5))
SIZES = (size("m"), size("n"), size("k"))


def stage(params: Any, read: Access, write: Access, expr: Any) -> Stage:
    """One statement that reads ``v`` and writes ``o``."""
    return Stage(params, {"v": read}, {"o": write}, (Assignment(OUT, expr, F),))


def neighbours(extents: tuple[Any, Any, Any] = (21, 13, 40)) -> tuple[Graph, Any, dict[str, str]]:
    """``y = exp(x)`` over m x 6, ``s`` the sums of the n rows of ``r``, ``d = 2 * c`` over k: nothing in common."""
    m, n, k = extents
    graph = Graph("neighbours")
    x, r, c = (graph.add_input(h, s, F) for h, s in (("x", (m, 6)), ("r", (n, 30)), ("c", (k,))))
    y, s, d = (graph.add_array(h, e, F) for h, e in (("y", (m, 6)), ("s", (n,)), ("d", (k,))))
    graph.symbols |= {str(e): (a, 0) for e, a in zip(extents, (x, r, c)) if isinstance(e, sympy.Symbol)}
    stages = [
        stage((ROW, COLUMN), Access(x, (ROW, COLUMN)), Access(y, (ROW, COLUMN)), sympy.exp(V)),
        stage((LINE, TERM), Access(r, (LINE, TERM)), Access(s, (LINE,), "sum"), V * V),
        stage((PLACE,), Access(c, (PLACE,)), Access(d, (PLACE,)), 2 * V),
    ]
    entry = graph.add_kernel(Kernel("neighbours", {ROW: m, COLUMN: 6, LINE: n, TERM: 30, PLACE: k}, stages))
    for name in (y, s, d):
        graph.add_output(name)
    return graph, entry, {"x": x, "r": r, "c": c, "y": y, "s": s, "d": d}


def blocks(tree: Tree) -> Tree:
    """The statements in blocks of 8 rows, 4 sums and 16 elements: one loop over the blocks of all."""
    (first, second, third) = tree.children  # type: ignore[union-attr]
    nests = [
        edits.split(first, "i0", 8),
        edits.split(second, "i2", 4),
        edits.bind(edits.split(third, "i4", 16), "i4", "vector"),
    ]
    return edits.bind(edits.side_by_side(nests), "block", "parallel")


def expected(data: dict[str, Any], names: dict[str, str]) -> dict[str, np.ndarray]:
    """In float64, from the inputs."""
    x, r, c = (np.asarray(data[names[k]], np.float64) for k in ("x", "r", "c"))
    return {names["y"]: np.exp(x), names["s"]: (r * r).sum(1), names["d"]: 2 * c}


def random_inputs(graph: Graph, extents: dict[str, int]) -> dict[str, np.ndarray]:
    """Values for all inputs."""
    rng = np.random.default_rng(0)

    def number(extent: Any) -> int:
        extent = sympy.sympify(extent)
        return int(extent.subs({s: extents[str(s)] for s in extent.free_symbols}))

    shapes = {n: [number(e) for e in graph.shape(n)] for n in graph.inputs}
    return {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}

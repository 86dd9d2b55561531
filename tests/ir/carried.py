"""Kernels whose locals carry values along a serial loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dace
import sympy

from daceopt.ir.graph.graph import Graph
from daceopt.ir.kernel.kernel import Access, Kernel, Stage, param
from daceopt.ir.kernel.tasklet import Assignment
from daceopt.ir.scalar import scalar
from daceopt.ir.scalar.tiles import blocks, tile_extent

F = dace.float32
ROW, TILE, COLUMN = (param(k) for k in range(3))
N = dace.symbolic.symbol("n", dace.int64)
Made = tuple[Graph, Any]


def stage(params: Any, reads: dict[str, Access], write: Access, expr: Callable[..., Any]) -> Stage:
    """One assignment of ``expr`` over what is read."""
    value = expr(*(scalar.symbol(n, F) for n in reads))
    return Stage(params, reads, {"o": write}, (Assignment(scalar.symbol("o", F), sympy.sympify(value), F),))


def logsumexp(rows: Any = 5, columns: Any = 70, size: int = 16) -> Made:
    """log(sum(exp(x))) of each row: a running maximum and a sum that is rescaled where it grows, tile by tile."""
    graph = Graph("logsumexp")
    x, y = graph.add_input("x", (rows, columns), F), graph.add_array("y", (rows,), F)
    if not isinstance(columns, int):
        graph.symbols["n"] = (x, 1)
    top, total, own, low, part = (Access(n, ()) for n in ("top", "total", "own", "low", "part"))
    here, inside = (ROW, TILE), (ROW, TILE, COLUMN)
    read = Access(x, (ROW, size * TILE + COLUMN))
    stages = [
        stage((ROW,), {}, top, lambda: -scalar.infinity()),
        stage((ROW,), {}, total, lambda: sympy.Float(0)),
        stage(inside, {"v": read}, Access("own", (), "max"), lambda v: v),
        stage(here, {"t": top}, low, lambda t: t),
        stage(here, {"t": top, "w": own}, top, scalar.maximum),
        stage(inside, {"v": read, "t": top}, Access("part", (), "sum"), lambda v, t: sympy.exp(v - t)),
        stage(here, {"s": total, "b": low, "t": top, "p": part}, total, lambda s, b, t, p: s * sympy.exp(b - t) + p),
        stage((ROW,), {"s": total, "t": top}, Access(y, (ROW,)), lambda s, t: t + sympy.log(s)),
    ]
    local = dict.fromkeys(("top", "total", "own", "low", "part"), (F, ()))
    extents = {ROW: rows, TILE: blocks(columns, size), COLUMN: tile_extent(columns, size, TILE)}
    graph.add_kernel(Kernel("lse", extents, stages, (ROW,), local, serial=(TILE,)))
    graph.add_output(y)
    return graph, graph.kernels()[0]


def recurrence(steps: Any = 9, rows: int = 6) -> Made:
    """y[t, r] = h[r] = 0.5 * h[r] + x[t, r]: a row of states, each step of which is a result."""
    graph = Graph("recurrence")
    x, y = graph.add_input("x", (steps, rows), F), graph.add_array("y", (steps, rows), F)
    state, both = Access("state", (ROW,)), (TILE, ROW)
    stages = [
        stage((ROW,), {}, state, lambda: sympy.Float(0)),
        stage(both, {"h": state, "v": Access(x, both)}, state, lambda h, v: h / 2 + v),
        stage(both, {"h": state}, Access(y, both), lambda h: h),
    ]
    graph.add_kernel(Kernel("steps", {ROW: rows, TILE: steps}, stages, (), {"state": (F, (rows,))}, serial=(TILE,)))
    graph.add_output(y)
    return graph, graph.kernels()[0]

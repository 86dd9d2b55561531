"""Run-time indices: the gradient of ``load(W, ...)`` is a scatter with addition into W."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import sympy

from daceopt.ir.graph.graph import Graph
from daceopt.ir.kernel.kernel import Stage
from daceopt.ir.kernel.tasklet import Assignment
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.nodes.library import IndexAdd
from daceopt.ir.scalar import scalar, types
from daceopt.ir.scalar.affine import same
from daceopt.ir.scalar.dims import Dim
from daceopt.ir.scalar.types import DType


@dataclass(frozen=True)
class Load:
    """One distinct run-time access: ``array[index]``, one expression per dimension; ``dtype`` is that of its value."""

    array: str
    index: tuple[sympy.Expr, ...]
    dtype: DType


@dataclass(frozen=True)
class GatherPlan:
    """How a load becomes an IndexAdd: ``index`` is the row number, a function of the parameters ``spread``; the
    gradient is laid out in ``order`` (``spread`` first); ``axis`` is the dimension of rows in the array, None when the
    array is seen as one flat row.
    """

    index: sympy.Expr
    spread: tuple[sympy.Symbol, ...]
    order: tuple[sympy.Symbol, ...]
    axis: int | None


def name_loads(graph: Graph, stage: Stage, wrt: Collection[str]) -> tuple[Stage, dict[str, Load]]:
    """The stage with every load from a wanted array in an assignment of its own; those assignments' names and loads."""
    names: dict[sympy.Expr, sympy.Symbol] = {}
    loads: dict[str, Load] = {}
    assignments: list[Assignment] = []
    for a in stage.assignments:
        for one in sorted(a.expr.atoms(scalar.load), key=str):
            access = stage.reads[str(one.args[0])]
            if access.array not in wrt:
                continue
            if one not in names:
                dtype = types.compute_type(graph.dtype(access.array))
                names[one] = scalar.symbol(f"loaded{len(names)}", dtype)
                assignments.append(Assignment(names[one], one, dtype))
                loads[str(names[one])] = Load(access.array, _full_index(access.index, one), dtype)
        expr = a.expr.xreplace(names)
        assignments.append(Assignment(a.symbol, expr, a.dtype))
    if not loads:
        return stage, {}
    return Stage(stage.params, stage.reads, stage.writes, tuple(assignments)), loads


def _full_index(index: tuple[Dim | None, ...], load: sympy.Expr) -> tuple[sympy.Expr, ...]:
    """One expression per dimension: the load's own, and the memlet's where that fixes a dimension."""
    places = list(load.args[1:])
    if len(places) == len(index):
        return tuple(places)
    return tuple(places.pop(0) if e is None else sympy.sympify(e) for e in index)


def plan(graph: Graph, load: Load, extents: Mapping[sympy.Symbol, Dim]) -> GatherPlan:
    """Rows along the one dimension that is not a plain loop, or single elements of the flattened array."""
    shape = graph.shape(load.array)
    whole = [k for k, e in enumerate(load.index) if e in extents and same(extents[e], shape[k])]
    row = tuple(load.index[k] for k in whole)
    if len(whole) == len(shape) - 1 and len(set(row)) == len(row):
        axis = next(k for k in range(len(shape)) if k not in whole)
        spread = tuple(p for p in extents if p not in row)
        return GatherPlan(load.index[axis], spread, (*spread, *row), axis)
    return flat(graph, load, extents)


def flat(graph: Graph, load: Load, extents: Mapping[sympy.Symbol, Dim]) -> GatherPlan:
    """Single elements of the flattened array: right for every load, row by row is faster where it is possible."""
    return GatherPlan(_flat(load.index, graph.shape(load.array)), tuple(extents), tuple(extents), None)


def _flat(index: tuple[sympy.Expr, ...], shape: tuple[Dim, ...]) -> sympy.Expr:
    flat: sympy.Expr = sympy.S.Zero
    for e, n in zip(index, shape, strict=True):
        flat = flat * n + scalar.select(scalar.lt(e, 0), e + n, e)
    return flat


def scatter(b: Builder, load: Load, plan: GatherPlan, index: str, rows: str) -> str:
    """The gradient of the loaded array, from the index array and the gradients in the plan's layout."""
    graph = b.graph
    shape = graph.shape(load.array)
    if plan.axis is None:
        flat = graph.add_array("d_flat", [graph.size(load.array)], load.dtype)
        b.library(IndexAdd, {"Index": index, "dY": rows}, {"dW": flat})
        return b.reshape(flat, shape)
    moved = [plan.axis, *(k for k in range(len(shape)) if k != plan.axis)]
    out = graph.add_array("d_rows", [shape[k] for k in moved], load.dtype)
    b.library(IndexAdd, {"Index": index, "dY": rows}, {"dW": out})
    if plan.axis == 0:
        return out
    return b.transpose(out, [moved.index(k) for k in range(len(shape))])

"""Scatters: elements or slices replaced by, or combined with, updates at run-time indices.

An index out of range never writes outside: the run fails with an IndexError. Updates of one element are applied in
row-major order of the indices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dace
import numpy as np
import sympy

from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.operands import all_required, require
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.scalar import checks, scalar, types
from daceopt.ir.scalar.dims import Dim
from daceopt.ops.core import algorithm
from daceopt.ops.core.registry import ANY, Names, Operator, gradient, lowering, supports
from daceopt.ops.families.indexing import (
    along,
    axis_of,
    element_positions,
    tuple_positions,
    whole,
    why_empty,
    why_no_tuples,
    why_other_shape,
)

_REDUCTIONS = {"none": 0, "add": 1, "mul": 2, "max": 3, "min": 4}
_COMBINE: dict[int, np.ufunc] = {1: np.add, 2: np.multiply, 3: np.maximum, 4: np.minimum}


def _place(b: Builder, node: Operator, data: str, indices: str) -> tuple[str, Dim, Dim]:
    """(positions of the rows to be changed, number of rows, elements of each): how the operator sees its data."""
    shape = b.graph.shape(data)
    if node.op_type == "ScatterND":
        length = int(b.graph.shape(indices)[-1])
        return tuple_positions(b, indices, shape[:length]), sympy.Mul(*shape[:length]), sympy.Mul(*shape[length:])
    return element_positions(b, indices, shape, axis_of(b.graph, node, data)), b.graph.size(data), 1


def _checked_place(b: Builder, node: Operator, data: str, indices: str) -> tuple[str, Dim, Dim]:
    """The same, where a position beyond the end is an error of the kernel that computes it: rows may be written where
    they are, and nothing else of the program waits for them."""
    places, rows, width = _place(b, node, data, indices)
    check = lambda k: scalar.checked(scalar.lt(k, rows), k, checks.INDEX)  # noqa: E731
    return b.elementwise(check, places, dtype=dace.int64, label="position"), rows, width


@lowering("ScatterElements", "Scatter", "ScatterND", types=ANY)
def scatter(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    """The data, in which the updates were stored or combined with what stood there."""
    data, indices, updates, out = *all_required(inputs, 3), require(outputs, 0)
    where, reduction = _checked_place(b, node, data, indices), _REDUCTIONS[node.attribute("reduction", "none")]
    narrow = b.graph.dtype(data)
    if not reduction or not types.is_narrow(narrow):
        return _scatter_rows(b, data, where, updates, out, reduction)
    wide = b.graph.add_array("scatter", b.graph.shape(out), types.compute_type(narrow))
    data, updates = (b.cast(n, types.compute_type(narrow)) for n in (data, updates))
    _scatter_rows(b, data, where, updates, wide, reduction)
    b.cast(wide, narrow, out=out)
    return None


def _scatter_rows(b: Builder, data: str, where: tuple[str, Dim, Dim], updates: str, out: str, reduction: int) -> None:
    places, rows, width = where
    parameters = [rows, width, b.graph.size(places), reduction]
    algorithm.call(b, "scatter_rows", [data, places, updates], [out], parameters, updating=True, sure=True)


@supports("ScatterElements", "Scatter", "ScatterND")
def why_not_scatter(graph: Graph, node: Operator) -> str | None:
    data, indices, updates = graph.operands(node)
    shape, places = graph.shape(data), graph.shape(indices)
    reduction = node.attribute("reduction", "none")
    if reduction not in _REDUCTIONS:
        return f"reduction {reduction!r}; expected one of {', '.join(_REDUCTIONS)}"
    if node.op_type == "ScatterND":
        return (
            why_no_tuples(graph, indices)
            or why_empty(graph, indices, *shape[: places[-1]])
            or why_other_shape(graph, updates, [*places[:-1], *shape[places[-1] :]])
        )
    if not shape:
        return "data of rank 0; expected at least one dimension"
    return why_empty(graph, indices, shape[axis_of(graph, node, data)]) or why_other_shape(graph, updates, places)


@gradient(
    "ScatterElements", "Scatter", "ScatterND", when=lambda node: node.attribute("reduction", "none") in ("none", "add")
)
def scatter_gradient(
    b: Builder, node: Operator, inputs: Names, outputs: Names, grads_out: Names, needs_grad: list[bool]
) -> Names:
    """Updates get dy from where they went; replaced data get none."""
    dy = grads_out[0]
    if dy is None:
        return [None, None, None]
    data, indices, updates = all_required(inputs)
    where = _place(b, node, data, indices)
    d_updates = _read_rows(b, dy, where, b.graph.shape(updates)) if needs_grad[2] else None
    if not needs_grad[0] or node.attribute("reduction", "none") == "add":
        return [dy if needs_grad[0] else None, None, d_updates]
    d_data = b.graph.add_array("scatter_grad", b.graph.shape(dy), b.graph.dtype(dy))
    zeros = b.full(b.graph.shape(updates), 0, b.graph.dtype(dy))
    _scatter_rows(b, dy, where, zeros, d_data, _REDUCTIONS["none"])
    return [d_data, None, d_updates]


def _read_rows(b: Builder, x: str, where: tuple[str, Dim, Dim], shape: Sequence[Dim]) -> str:
    """The rows of ``x`` at the positions, as an array of ``shape``."""
    places, rows, width = where
    count = b.graph.size(places)
    out = b.graph.add_array("updates_grad", (count, width), b.graph.dtype(x))
    b.map(
        (count, width),
        {"x": (b.reshape(x, (rows, width)), along(0)), "k": (b.reshape(places, (count,)), lambda *i: (i[0],))},
        {"out": (out, lambda *i: i)},
        lambda i, x, k: scalar.load(x, k),
    )
    return b.reshape(out, shape)


@algorithm.reference("scatter_rows")
def _reference(inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], parameters: Sequence[int]) -> None:
    rows, width, count, reduction = parameters
    data, places, updates = inputs[0].reshape(rows, width), inputs[1].reshape(-1), inputs[2].reshape(count, width)
    if ((places < 0) | (places >= rows)).any():
        raise IndexError(f"scatter: positions {places}; expected 0 to {rows - 1}")
    result = data.copy()
    for place, update in zip(places, updates):  # one by one, because of duplicates
        result[place] = _COMBINE[reduction](result[place], update) if reduction else update
    outputs[0][...] = result.reshape(outputs[0].shape)


# -------------------------------------------------------------------- caches


class _Cache:
    """Where a TensorScatter writes: positions along its axis of extent ``extent``, updates of ``steps`` steps."""

    def __init__(self, graph: Graph, node: Operator, inputs: Names):
        self.past, self.update = require(inputs, 0), require(inputs, 1)
        self.starts = inputs[2] if len(inputs) > 2 else None
        self.shape, self.axis = graph.shape(self.past), axis_of(graph, node, self.past, -2)
        self.extent, self.steps = self.shape[self.axis], graph.shape(self.update)[self.axis]
        self.circular = node.attribute("mode", "linear") == "circular"

    def reads(self, **others: sympy.Expr) -> dict[str, Any]:
        """``others``, and the first position of each batch entry as ``n``."""
        return others if self.starts is None else {**others, "n": (self.starts, lambda *i: (i[0],))}

    def at(self, i: Sequence[sympy.Expr], place: sympy.Expr) -> list[sympy.Expr]:
        """``i`` with ``place`` along the axis."""
        return [place if d == self.axis else k for d, k in enumerate(i)]

    def step(self, i: Sequence[sympy.Expr], n: sympy.Expr) -> tuple[sympy.Expr, sympy.Expr]:
        """(which step of the update is at the element ``i`` of the cache, whether one does)."""
        step = scalar.pymod(i[self.axis] - n, self.extent) if self.circular else i[self.axis] - n
        return step, scalar.logical_and(scalar.ge(step, 0), scalar.lt(step, self.steps))


@lowering("TensorScatter", types=ANY)
def tensor_scatter(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    """A cache with new steps of each batch entry from ``write_indices[n]`` on; ``circular`` goes on at the start."""
    cache, out = _Cache(b.graph, node, inputs), require(outputs, 0)

    def element(i: tuple[sympy.Symbol, ...], x: sympy.Expr, u: sympy.Expr, n: sympy.Expr = sympy.S.Zero) -> sympy.Expr:
        step, written = cache.step(i, n)
        source = scalar.select(written, step, 0)
        if not cache.circular:  # what does not fit ends the run
            fits = scalar.logical_and(scalar.ge(n, 0), scalar.le(n + cache.steps, cache.extent))
            source = scalar.select(fits, source, -1)
        return scalar.select(written, scalar.load(u, *cache.at(i, source)), x)

    reads = cache.reads(x=(cache.past, lambda *i: i), u=(cache.update, whole(len(cache.shape))))
    b.map(cache.shape, reads, {"out": (out, lambda *i: i)}, element, label="tensor_scatter")


@supports("TensorScatter")
def why_not_tensor_scatter(graph: Graph, node: Operator) -> str | None:
    past, update = graph.operands(node, 2)
    starts, shape = [*graph.inputs_of(node), None][2], graph.shape(past)
    return why_empty(graph, past, *graph.shape(update)) or why_other_shape(graph, starts, shape[:1])


@gradient("TensorScatter")
def tensor_scatter_gradient(
    b: Builder, node: Operator, inputs: Names, outputs: Names, grads_out: Names, needs_grad: list[bool]
) -> Names:
    """The update gets dy from where it was written, the cache the rest."""
    dy, absent = grads_out[0], [None] * (len(inputs) - 2)
    if dy is None:
        return [None, None, *absent]
    cache, dtype = _Cache(b.graph, node, inputs), b.graph.dtype(dy)
    d_past, d_update = (b.graph.add_array("cache_grad", b.graph.shape(n), dtype) for n in (cache.past, cache.update))

    def keep(i: tuple[sympy.Symbol, ...], g: sympy.Expr, n: sympy.Expr = sympy.S.Zero) -> sympy.Expr:
        return scalar.select(cache.step(i, n)[1], 0, g)

    def write(i: tuple[sympy.Symbol, ...], g: sympy.Expr, n: sympy.Expr = sympy.S.Zero) -> sympy.Expr:
        place = i[cache.axis] + n
        return scalar.load(g, *cache.at(i, scalar.pymod(place, cache.extent) if cache.circular else place))

    b.map(cache.shape, cache.reads(g=(dy, lambda *i: i)), {"out": (d_past, lambda *i: i)}, keep)
    reads = cache.reads(g=(dy, whole(len(cache.shape))))
    b.map(b.graph.shape(cache.update), reads, {"out": (d_update, lambda *i: i)}, write)
    return [d_past, d_update, *absent]

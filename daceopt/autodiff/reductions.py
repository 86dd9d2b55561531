"""The gradient through products, maxima and minima: how one element shares in the gradient of the reduced value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import sympy

from daceopt.autodiff.partials import needed_assignments
from daceopt.ir.kernel.kernel import Access, Kernel, Stage
from daceopt.ir.kernel.tasklet import Assignment
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.scalar import scalar, types
from daceopt.ir.scalar.dims import Dim


def statistics(b: Builder, label: str, extents: Mapping[sympy.Symbol, Dim], stage: Stage, conn: str) -> list[str]:
    """Arrays of the reduced shape that :func:`share` reads.

    Product: (product of the factors that are not zero, number of zeros, number of infinities and NaN). Maximum and
    minimum: (the result, number of elements that attain it).
    """
    access = stage.writes[conn]
    value = next(a.symbol for a in stage.assignments if str(a.symbol) == conn)
    if access.wcr == "prod":
        nonzero = scalar.select(scalar.eq(value, 0), 1, value)
        zeros = scalar.select(scalar.eq(value, 0), 1, 0)
        return [
            _reduce(b, label, extents, stage, conn, "prod", nonzero),
            _reduce(b, label, extents, stage, conn, "sum", zeros),
            _reduce(b, label, extents, stage, conn, "sum", _is_not_finite(value)),
        ]
    best = access.array
    if types.is_narrow(b.graph.dtype(best)):  # was rounded when it was stored, so no element may be equal to it
        assert access.wcr is not None
        best = _reduce(b, label, extents, stage, conn, access.wcr, value)
    stage = Stage(stage.params, {**stage.reads, "best": Access(best, access.index)}, stage.writes, stage.assignments)
    attains = scalar.select(scalar.eq(value, scalar.symbol("best", b.graph.dtype(best))), 1, 0)
    return [best, _reduce(b, label, extents, stage, conn, "sum", attains)]


def share(kind: str, value: sympy.Expr, g: sympy.Expr, statistics: Sequence[sympy.Expr]) -> sympy.Expr:
    """Gradient of one element ``value``, given the result's gradient ``g``; elements that tie share evenly, as in
    PyTorch's ``amax``.
    """
    first, count = statistics[:2]
    if kind != "prod":
        return scalar.select(scalar.eq(value, first), g / count, 0)
    others = scalar.gt(statistics[2] - _is_not_finite(value), 0)  # times a factor of 0, they are NaN
    only_zero = scalar.logical_and(scalar.eq(value, 0), scalar.eq(count, 1))
    by_zeros = scalar.select(only_zero, g * first, scalar.select(others, scalar.nan(), 0))
    return scalar.select(scalar.eq(count, 0), g * scalar.apart(first / value), by_zeros)


def _is_not_finite(value: sympy.Expr) -> sympy.Expr:
    return scalar.select(scalar.logical_or(scalar.isnan(value), scalar.isinf(value)), 1, 0)


def _reduce(
    b: Builder, label: str, extents: Mapping[sympy.Symbol, Dim], stage: Stage, conn: str, kind: str, value: sympy.Expr
) -> str:
    """Reduce ``value`` (over the stage's symbols) as the write ``conn`` does."""
    access = stage.writes[conn]
    dtype = types.compute_type(b.graph.dtype(access.array))
    out = b.graph.add_array(f"{label}_{kind}", b.graph.shape(access.array), dtype)
    result = Assignment(scalar.symbol("stat", dtype), value, dtype)
    code, used = needed_assignments((*stage.assignments, result), [result.symbol])
    reads = {c: a for c, a in stage.reads.items() if c in used}
    new = Stage(stage.params, reads, {"stat": Access(out, access.index, kind)}, code)
    b.graph.add_kernel(Kernel(b.label, dict(extents), [new]))
    return out

"""Means and variances: the mean first, then the distances from it.

A mean is rounded. Of a row of nearly equal numbers, its error is as large as their distances from it, and a
normalization would divide both by the deviation. So the second pass sums the distances beside their squares: they would
sum to 0 but for the rounding, by which mean and variance are then put right (the corrected two-pass algorithm: Chan,
Golub and LeVeque, Algorithms for computing the sample variance, 1983, equation 1.7). Equal numbers have their own value
as mean, and a variance of 0.

The first pass sums shares of the mean: a sum of elements would leave the range of their type where no mean does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sympy

from daceopt.ir.nodes.builder import Builder
from daceopt.ir.scalar import scalar, types
from daceopt.ir.scalar.dims import Dim
from daceopt.ops.families.reduction import element_count, mean


def moments(b: Builder, x: str, axes: Sequence[int]) -> tuple[str, str]:
    """Mean and (biased) variance of ``x`` over ``axes``, which stay as extents of 1, in the type of computation.

    Both are NaN where there is no element.
    """
    dtype, count = types.compute_type(b.graph.dtype(x)), element_count(b.graph, x, axes)
    if count == 0:
        empty = mean(b, None, x, axes=axes, keepdims=True)
        return empty, empty
    n = count if count.is_Integer else scalar.cast(count, dtype)
    rounded = _sum_of_shares(b, x, axes, n)
    square, drift = centred_sums(b, x, rounded, axes, keepdims=True)
    centre = b.elementwise(_correction(n), rounded, drift, dtype=dtype, label="mean")
    return str(centre), str(b.elementwise(lambda s, d: variance(s, d, n) / n, square, drift, label="variance"))


def _sum_of_shares(b: Builder, x: str, axes: Sequence[int], count: sympy.Expr) -> str:
    """The mean but for rounding."""
    dtype = types.compute_type(b.graph.dtype(x))
    options: dict[str, Any] = {"axes": axes, "keepdims": True, "dtype": dtype, "label": "mean"}
    if count.is_Integer:
        return b.reduce("sum", lambda v: v * sympy.Float(1 / int(count), 17), x, **options)
    share = b.graph.add_array("share", (1,) * len(b.graph.shape(x)), dtype)  # a quotient inside of the loop is slow
    b.map(b.graph.shape(share), {}, {"out": (share, lambda *i: i)}, lambda i: 1 / count)
    return b.reduce("sum", lambda v, w: v * w, x, share, **options)


def _correction(count: sympy.Expr) -> Callable[[sympy.Expr, sympy.Expr], sympy.Expr]:
    """A rounded mean put right by the sum of distances from it, which may leave the range of their type."""
    return lambda m, d: scalar.select(scalar.lt(sympy.Abs(d), scalar.infinity()), m + d / count, m)


def variance(square: sympy.Expr, drift: sympy.Expr, count: sympy.Expr) -> sympy.Expr:
    """The sum of squared distances from the mean, of those from a rounded one; rounding must not leave it below 0.

    Where the squares overflow, so does what would be taken off, and there is no difference: it is infinite.
    """
    return scalar.select(scalar.isinf(square), square, scalar.maximum(square - drift * drift / count, 0))


def centred_sums(b: Builder, x: str, centre: str, axes: Sequence[int], keepdims: bool) -> tuple[str, str]:
    """The sums of squared distances from ``centre``, whose ``axes`` have extent 1, and of the distances."""
    shape, dtype = b.graph.shape(x), types.compute_type(b.graph.dtype(x))
    reduced = tuple(1 if k in axes else n for k, n in enumerate(shape) if keepdims or k not in axes)
    outs = [b.graph.add_array(label, reduced, dtype) for label in ("square", "drift")]
    how = ["sum"] if axes else []

    def inside(*i: sympy.Expr) -> tuple[Dim | None, ...]:
        return tuple(0 if k in axes else e for k, e in enumerate(i))

    def keep(*i: sympy.Expr) -> tuple[Dim | None, ...]:
        return tuple(e for k, e in enumerate(inside(*i)) if keepdims or k not in axes)

    b.map(
        shape,
        {"v": (x, lambda *i: i), "m": (centre, inside)},
        {"square": (outs[0], keep, *how), "drift": (outs[1], keep, *how)},
        lambda i, v, m: {"square": (v - m) ** 2, "drift": v - m},
    )
    return outs[0], outs[1]

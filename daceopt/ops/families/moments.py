"""Means and variances, by two passes over rows that stay in a cache, by one where they do not.

Two passes: the mean first, then the distances from it.

A mean is rounded. Of a row of nearly equal numbers, its error is as large as their distances from it, and a
normalization would divide both by the deviation. So the second pass sums the distances beside their squares: they would
sum to 0 but for the rounding, by which mean and variance are then put right (the corrected two-pass algorithm: Chan,
Golub and LeVeque, Algorithms for computing the sample variance, 1983, equation 1.7). Equal numbers have their own value
as mean, and a variance of 0.

The first pass sums shares of the mean: a sum of elements would leave the range of their type where no mean does.

One pass, where elements of float32 and less are summed that do not stand side by side, as for the statistics of a
batch: what two passes read twice is the whole array then. In doubles the squares of distances from any element lose
nothing that a float32 would hold (shifted data: the same paper, equation 1.6), and each row's first one will do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import dace
import sympy

from daceopt.ir import scalar, types
from daceopt.ir.builder import Builder
from daceopt.ops.core import values
from daceopt.ops.families.reduction import element_count, mean


def moments(b: Builder, x: str, axes: Sequence[int]) -> tuple[str, str]:
    """Mean and (biased) variance of ``x`` over ``axes``, which stay as extents of 1, in the type of computation.

    Both are NaN where there is no element.
    """
    dtype, count = types.computed(b.graph.dtype(x)), element_count(b.graph, x, axes)
    if count == 0:
        empty = mean(b, None, x, axes=axes, keepdims=True)
        return empty, empty
    if dtype == dace.float32 and not _side_by_side(len(b.graph.shape(x)), axes):
        return _shifted(b, x, axes, count)
    n = count if count.is_Integer else scalar.cast(count, dtype)
    rounded = _sum_of_shares(b, x, axes, n)
    square, drift = centred_sums(b, x, rounded, axes, keepdims=True)
    centre = b.elementwise(_corrected(n), rounded, drift, dtype=dtype, label="mean")
    return str(centre), str(b.elementwise(lambda s, d: variance(s, d, n) / n, square, drift, label="variance"))


def _side_by_side(rank: int, axes: Sequence[int]) -> bool:
    """Are these the innermost axes, whose elements a row of a cache's size has?"""
    return sorted(axes) == list(range(rank - len(axes), rank))


def _shifted(b: Builder, x: str, axes: Sequence[int], count: Any) -> tuple[str, str]:
    n, dtype = scalar.cast(count, dace.float64), types.computed(b.graph.dtype(x))
    first = _first_elements(b, x, axes)
    square, drift = centred_sums(b, x, first, axes, keepdims=True)
    centre = b.elementwise(lambda m, d: scalar.cast(m + d / n, dtype), first, drift, label="mean")
    # of an infinite element both are infinite, and what is left is NaN, as the variance is
    spread = b.elementwise(
        lambda s, d: scalar.cast(scalar.maximum(s - d * d / n, 0) / n, dtype), square, drift, label="variance"
    )
    return str(centre), str(spread)


def _first_elements(b: Builder, x: str, axes: Sequence[int]) -> str:
    """The first element along ``axes`` as a double; 0 where it is not finite, or there is none."""
    shape = b.graph.shape(x)
    reduced = tuple(1 if k in axes else n for k, n in enumerate(shape))
    first = b.graph.add_array("first", reduced, dace.float64)
    is_there = all(values.signs_of(shape[a]) == {1} for a in axes)
    extents = reduced if is_there else tuple(sympy.Min(n, 1) if k in axes else n for k, n in enumerate(shape))
    b.map(
        extents,
        {"v": (x, lambda *i: i)},
        {"out": (first, _at_front(axes), *([] if is_there else ["sum"]))},
        lambda i, v: scalar.select(scalar.lt(sympy.Abs(v), scalar.infinity()), scalar.cast(v, dace.float64), 0.0),
        label="first",
    )
    return first


def _at_front(axes: Sequence[int]) -> Callable[..., tuple[Any, ...]]:
    """An element's index, with 0 along ``axes``."""
    return lambda *i: tuple(0 if k in axes else e for k, e in enumerate(i))


def _sum_of_shares(b: Builder, x: str, axes: Sequence[int], count: Any) -> str:
    """The mean but for rounding."""
    dtype = types.computed(b.graph.dtype(x))
    options: dict[str, Any] = {"axes": axes, "keepdims": True, "dtype": dtype, "label": "mean"}
    if count.is_Integer:
        return b.reduce("sum", lambda v: v * sympy.Float(1 / int(count), 17), x, **options)
    share = b.graph.add_array("share", (1,) * len(b.graph.shape(x)), dtype)  # a quotient inside of the loop is slow
    b.map(b.graph.shape(share), {}, {"out": (share, lambda *i: i)}, lambda i: 1 / count)
    return b.reduce("sum", lambda v, w: v * w, x, share, **options)


def _corrected(count: Any) -> Callable[[Any, Any], Any]:
    """A rounded mean put right by the sum of distances from it, which may leave the range of their type."""
    return lambda m, d: scalar.select(scalar.lt(sympy.Abs(d), scalar.infinity()), m + d / count, m)


def variance(square: Any, drift: Any, count: Any) -> Any:
    """The sum of squared distances from the mean, of those from a rounded one; rounding must not leave it below 0.

    Where the squares overflow, so does what would be taken off, and there is no difference: it is infinite.
    """
    return scalar.select(scalar.isinf(square), square, scalar.maximum(square - drift * drift / count, 0))


def centred_sums(b: Builder, x: str, centre: str, axes: Sequence[int], keepdims: bool) -> tuple[str, str]:
    """In the type of ``centre``, whose ``axes`` have extent 1: the sums of squared distances from it, and of these."""
    shape, dtype = b.graph.shape(x), b.graph.dtype(centre)
    reduced = tuple(1 if k in axes else n for k, n in enumerate(shape) if keepdims or k not in axes)
    outs = [b.graph.add_array(label, reduced, dtype) for label in ("square", "drift")]
    how = ["sum"] if axes else []

    inside = _at_front(axes)

    def distance(v: Any, m: Any) -> Any:
        return scalar.cast(v, dtype) - m

    def kept(*i: Any) -> tuple[Any, ...]:
        return tuple(e for k, e in enumerate(inside(*i)) if keepdims or k not in axes)

    b.map(
        shape,
        {"v": (x, lambda *i: i), "m": (centre, inside)},
        {"square": (outs[0], kept, *how), "drift": (outs[1], kept, *how)},
        lambda i, v, m: {"square": distance(v, m) ** 2, "drift": distance(v, m)},
    )
    return outs[0], outs[1]

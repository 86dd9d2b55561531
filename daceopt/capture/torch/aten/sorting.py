"""Orders, selections by rank, and searches in what is sorted.

Selections take of equal elements those that ATen takes: a gradient, too, goes to the element that was taken.
"""

from __future__ import annotations

import dace
import sympy

from daceopt.capture.torch.aten.reduction import flat, reduced_shape
from daceopt.capture.torch.aten.shape import axis_in
from daceopt.capture.torch.calls import ArrayOrNumber
from daceopt.capture.torch.table import translates
from daceopt.capture.torch.translation import Translation
from daceopt.ir.scalar import types
from daceopt.ir.scalar.dims import Dim, dim
from daceopt.ops.families.indexing import gather_along
from daceopt.ops.families.searching import Wanted, ranked_index, search_sorted
from daceopt.ops.families.sorting import Ties, top_indices

# -------------------------------------------------------------------- sorting


@translates("sort", derivative="aten")
def sort(t: Translation, self: str, dim: int, descending: bool) -> tuple[str, str]:
    return _topk(t, self, dim, descending, Ties.ATEN_SORT)


@translates("sort.stable", derivative="aten")
def sort_stable(t: Translation, self: str, stable: bool | None, dim: int, descending: bool) -> tuple[str, str]:
    return _topk(t, self, dim, descending, Ties.LOWER_INDEX_FIRST if stable else Ties.ATEN_SORT)


@translates("topk", derivative="aten")
def topk(t: Translation, self: str, k: Dim, dim: int, largest: bool, sorted: bool) -> tuple[str, str]:
    return _topk(t, self, dim, largest, Ties.ATEN if sorted else Ties.ATEN_UNSORTED)


def _topk(t: Translation, self: str, dim: int, largest: bool, ties: Ties) -> tuple[str, str]:
    """The largest or smallest elements, as many as are promised, and where they are; NaN is the largest."""
    if not t.shape_of(self):
        value, place = _scalar(t, self)
        return t.reshape(value, t.shape), t.reshape(place, t.shape)
    axis = axis_in(dim, len(t.shape_of(self)))
    places = t.graph.add_array("top_indices", t.shape, dace.int64)
    top_indices(t.b, _comparable(t, self), axis, places, largest, ties)
    return _elements_at(t, self, places, axis), places


# -------------------------------------------------------------------- selections by rank


@translates("kthvalue", derivative="aten")
def kthvalue(t: Translation, self: str, k: int, dim: int, keepdim: bool) -> tuple[str, str]:
    return _of_rank(t, self, dim, Wanted.RANK, k - 1)


@translates("median", derivative="aten")
def median(t: Translation, self: str) -> str:
    return _middle_of_all(t, self, Wanted.MEDIAN)


@translates("nanmedian", derivative="aten")
def nanmedian(t: Translation, self: str) -> str:
    return _middle_of_all(t, self, Wanted.MEDIAN_WITHOUT_NAN)


@translates("median.dim", derivative="aten")
def median_dim(t: Translation, self: str, dim: int, keepdim: bool) -> tuple[str, str]:
    return _of_rank(t, self, dim, Wanted.MEDIAN)


@translates("nanmedian.dim", derivative="aten")
def nanmedian_dim(t: Translation, self: str, dim: int, keepdim: bool) -> tuple[str, str]:
    return _of_rank(t, self, dim, Wanted.MEDIAN_WITHOUT_NAN)


def _middle_of_all(t: Translation, x: str, statistic: Wanted) -> str:
    x = flat(t, x)
    if t.shape_of(x)[0] == 0:
        return t.b.full((), float("nan"), t.dtype_of(x))
    return t.reshape(_pick(t, x, 0, statistic)[0], ())


def _of_rank(t: Translation, self: str, dim: int, statistic: Wanted, rank: int = 0) -> tuple[str, str]:
    if not t.shape_of(self):
        return _scalar(t, self)
    value, place = _pick(t, self, axis_in(dim, len(t.shape_of(self))), statistic, rank)
    return t.reshape(value, t.shape), t.reshape(place, t.shape)


def _pick(t: Translation, x: str, axis: int, statistic: Wanted, rank: int = 0) -> tuple[str, str]:
    """An element along ``axis`` and its place, 1 along that axis."""
    place = t.graph.add_array("place", reduced_shape(t.shape_of(x), [axis], True), dace.int64)
    ranked_index(t.b, _comparable(t, x), axis, place, statistic, rank)
    return _elements_at(t, x, place, axis), place


def _elements_at(t: Translation, x: str, places: str, axis: int) -> str:
    elements = t.graph.add_array("found", t.shape_of(places), t.dtype_of(x))
    gather_along(t.b, x, places, axis, elements)
    return elements


def _scalar(t: Translation, self: str) -> tuple[str, str]:
    """Of rank 0, an element is all there is."""
    return self, t.b.full((), 0, dace.int64)


def _comparable(t: Translation, x: str) -> str:
    return t.cast(x, dace.uint8) if types.is_bool(t.dtype_of(x)) else x


# -------------------------------------------------------------------- searching


@translates("searchsorted.Tensor", "searchsorted.Scalar")
def searchsorted(
    t: Translation,
    sorted_sequence: str,
    self: ArrayOrNumber,
    out_int32: bool,
    right: bool,
    side: str | None,
    sorter: str | None,
) -> str:
    return _insertion(t, sorted_sequence, self, sorter, right or side == "right")


@translates("bucketize.Tensor", "bucketize.Scalar")
def bucketize(t: Translation, self: ArrayOrNumber, boundaries: str, out_int32: bool, right: bool) -> str:
    return _insertion(t, boundaries, self, None, right)


def _insertion(t: Translation, boundaries: str, value: object, order: str | None, right: bool) -> str:
    """All rows of values search in their row of boundaries, or in the one row that there is."""
    b, shape = t.b, t.shape_of(boundaries)
    values = t.array(value, t.dtype_of(boundaries))
    shared = len(shape) == 1
    count = t.graph.size(values) if shared else t.shape_of(values)[-1]
    rows: Dim = 1 if shared else dim(sympy.Mul(*shape[:-1]))
    out = t.graph.add_array("places", (rows, count), dace.int64)
    lines, searched = b.reshape(boundaries, (rows, shape[-1])), b.reshape(values, (rows, count))
    sorter = None if order is None else b.reshape(order, (rows, shape[-1]))
    search_sorted(b, lines, searched, sorter, out, shared, right)
    return t.cast(t.reshape(out, t.shape), t.dtype)

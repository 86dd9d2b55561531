"""Orders, selections by rank, and searches in what is sorted."""

from __future__ import annotations

from typing import Any

import dace
import sympy

from daceopt.capture.torch.aten.reduction import flat, reduced_shape
from daceopt.capture.torch.aten.shape import axis_in
from daceopt.capture.torch.calls import Promise
from daceopt.capture.torch.table import translates
from daceopt.capture.torch.translation import Translation
from daceopt.ir import scalar, types
from daceopt.ir.graph import Dim, dim
from daceopt.ops.families.indexing import whole
from daceopt.ops.families.searching import search_sorted

# -------------------------------------------------------------------- sorting


@translates("sort")
def sort(t: Translation, self: str, dim: int, descending: bool) -> tuple[str, str]:
    if not t.shape_of(self):
        return _scalar(t, self)
    axis = axis_in(dim, len(t.shape_of(self)))
    return _ranked(t, self, axis, t.shape_of(self)[axis], descending)


@translates("sort.stable")
def sort_stable(t: Translation, self: str, stable: bool | None, dim: int, descending: bool) -> tuple[str, str]:
    return sort(t, self, dim, descending)


@translates("topk")
def topk(t: Translation, self: str, k: Dim, dim: int, largest: bool, sorted: bool) -> tuple[str, str]:
    if t.shape_of(self):
        return _ranked(t, self, axis_in(dim, len(t.shape_of(self))), k, largest)
    value, place = _scalar(t, self)
    return t.reshape(value, t.shape), t.reshape(place, t.shape)


@translates("kthvalue")
def kthvalue(t: Translation, self: str, k: int, dim: int, keepdim: bool) -> tuple[str, str]:
    """The last of the k smallest."""
    if not t.shape_of(self):
        return _scalar(t, self)
    axis = axis_in(dim, len(t.shape_of(self)))
    found = _ranked(t, self, axis, k, False)
    last = (t.b.slice(n, [k - 1], [k], axes=[axis]) for n in found)
    value, place = (n if keepdim else t.reshape(n, t.shape) for n in last)
    return value, place


def _scalar(t: Translation, self: str) -> tuple[str, str]:
    """Of rank 0, an element is all there is."""
    return self, t.b.full((), 0, dace.int64)


def _ranked(t: Translation, x: str, axis: int, k: Dim, largest: bool) -> tuple[str, str]:
    """The k largest or smallest in order, and where they stand; NaN is the largest, and equals keep their order."""
    own = t.dtype_of(x)
    x = t.cast(x, dace.uint8) if types.is_bool(own) else x
    shape = tuple(k if j == axis else n for j, n in enumerate(t.shape_of(x)))
    results = [Promise(shape, t.dtype_of(x)), Promise(shape, dace.int64)]
    found, places = t.operator("TopK", x, t.integers([k]), results=results, axis=axis, largest=int(largest), sorted=1)
    return t.cast(found, own), places


# -------------------------------------------------------------------- medians


@translates("median", derivative="aten")
def median(t: Translation, self: str) -> str:
    return t.reshape(_middle(t, flat(t, self), 0, False)[0], ())


@translates("nanmedian", derivative="aten")
def nanmedian(t: Translation, self: str) -> str:
    return t.reshape(_middle(t, flat(t, self), 0, True)[0], ())


@translates("median.dim", derivative="aten")
def median_dim(t: Translation, self: str, dim: int, keepdim: bool) -> tuple[str, str]:
    return _median(t, self, dim, keepdim, False)


@translates("nanmedian.dim", derivative="aten")
def nanmedian_dim(t: Translation, self: str, dim: int, keepdim: bool) -> tuple[str, str]:
    return _median(t, self, dim, keepdim, True)


def _median(t: Translation, self: str, dim: int, keepdim: bool, without_nan: bool) -> tuple[str, str]:
    if not t.shape_of(self):
        return _scalar(t, self)
    axis = axis_in(dim, len(t.shape_of(self)))
    value, place = (t.reshape(n, t.shape) for n in _middle(t, self, axis, without_nan))
    return value, place


def _middle(t: Translation, x: str, axis: int, without_nan: bool) -> tuple[str, str]:
    """The lower of the middle elements and its place; a NaN where there is one, unless those do not count."""
    b, shape = t.b, t.shape_of(x)
    n = shape[axis]
    if n == 0:
        return b.full(reduced_shape(shape, [axis], True), float("nan"), t.dtype_of(x)), ""
    nans = b.reduce(
        "sum", lambda v: scalar.select(scalar.isnan(v), 1, 0), x, axes=[axis], keepdims=True, dtype=dace.int64
    )
    ordered, order = _ranked(t, x, axis, n, False)
    kept = reduced_shape(shape, [axis], True)
    value, place = b.graph.add_array("median", kept, t.dtype_of(x)), b.graph.add_array("median", kept, dace.int64)

    def picked(i: Any, v: Any, p: Any, c: Any) -> dict[str, Any]:
        valid = scalar.maximum(scalar.idiv(n - c - 1, 2), 0)
        k = (
            valid
            if without_nan
            else scalar.select(scalar.gt(c, 0), n - c, scalar.idiv(scalar.cast(n, dace.int64) - 1, 2))
        )
        at = (*i[:axis], k, *i[axis + 1 :])
        return {"value": scalar.load(v, *at), "place": scalar.load(p, *at)}

    everything = whole(len(shape))
    reads = {"v": (ordered, everything), "p": (order, everything), "c": (nans, lambda *i: i)}
    b.map(kept, reads, {"value": (value, lambda *i: i), "place": (place, lambda *i: i)}, picked)
    return value, place


# -------------------------------------------------------------------- searching


@translates("searchsorted.Tensor", "searchsorted.Scalar")
def searchsorted(
    t: Translation, sorted_sequence: str, self: Any, out_int32: bool, right: bool, side: str | None, sorter: str | None
) -> str:
    return _insertion(t, sorted_sequence, self, sorter, right or side == "right")


@translates("bucketize.Tensor", "bucketize.Scalar")
def bucketize(t: Translation, self: Any, boundaries: str, out_int32: bool, right: bool) -> str:
    return _insertion(t, boundaries, self, None, right)


def _insertion(t: Translation, boundaries: str, value: Any, order: str | None, right: bool) -> str:
    """All rows of values search in their row of boundaries, or in the one row that there is."""
    b, shape = t.b, t.shape_of(boundaries)
    values = t.array(value, t.dtype_of(boundaries))
    shared = len(shape) == 1
    count = t.graph.size(values) if shared else t.shape_of(values)[-1]
    rows: Dim = 1 if shared else dim(sympy.Mul(*shape[:-1]))
    out = t.graph.add_array("places", (rows, count), dace.int64)
    lines, wanted = b.reshape(boundaries, (rows, shape[-1])), b.reshape(values, (rows, count))
    sorter = None if order is None else b.reshape(order, (rows, shape[-1]))
    search_sorted(b, lines, wanted, sorter, out, shared, right)
    return t.cast(t.reshape(out, t.shape), t.dtype)

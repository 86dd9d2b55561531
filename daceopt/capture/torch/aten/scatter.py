"""Scatters along an axis, masked ones, and parts of tensors that others replace."""

from __future__ import annotations

from typing import Any

import dace
import numpy as np
import sympy

from daceopt.capture.torch.aten.indexing import WIDE, at_least_1d, check_reduction, product, put_rows, put_slice
from daceopt.capture.torch.aten.shape import check_memory, extents_of
from daceopt.capture.torch.calls import Number, Promise
from daceopt.capture.torch.table import translates
from daceopt.capture.torch.translation import Translation
from daceopt.errors import Unsupported
from daceopt.ir.scalar import scalar, types
from daceopt.ir.scalar.dims import Dim, dim
from daceopt.ir.scalar.types import DType
from daceopt.ops.families.indexing import linear

_REDUCTIONS = {"add": "add", "multiply": "mul", "sum": "add", "prod": "mul", "amax": "max", "amin": "min"}


class _Along:
    """The elements of ``data`` that ``index`` names along ``axis``, as rows of one element."""

    def __init__(self, t: Translation, data: str, dimension: int, index: str) -> None:
        self.t, self.data, self.index = t, at_least_1d(t, data), at_least_1d(t, index)
        self.shape, self.places = t.shape_of(self.data), t.shape_of(self.index)
        self.axis = dimension % len(self.shape)
        self.size, self.count = product(self.shape), product(self.places)
        self._flat: str | None = None

    @property
    def is_empty(self) -> bool:
        """Nothing is named."""
        return self.count == 0

    def flat(self) -> str:
        """Row-major positions; beyond the end where an index is out of range, negative ones included."""
        if self._flat is None:
            self._flat = self.t.graph.add_array("position", self.places, dace.int64)
            reads = {"k": (self.index, lambda *i: i)}
            self.t.b.map(self.places, reads, {"out": (self._flat, lambda *i: i)}, self._position, label="position")
        return self.t.reshape(self._flat, (self.count,))

    def _position(self, i: Any, k: sympy.Expr) -> sympy.Expr:
        checked = [d for d, (n, m) in enumerate(zip(self.places, self.shape)) if d == self.axis or not _fits(n, m)]
        return linear([*i[: self.axis], scalar.cast(k, dace.int64), *i[self.axis + 1 :]], self.shape, checked)

    def updates(self, src: str) -> str:
        """The part of ``src`` that belongs to the index, flat."""
        src = at_least_1d(self.t, src)
        if any(dim(n - m) != 0 for n, m in zip(self.t.shape_of(src), self.places)):
            result = Promise(self.places, self.t.dtype_of(src))
            axes = list(range(len(self.places)))
            bounds = [self.t.integers([0] * len(axes)), extents_of(self.t, self.places), self.t.integers(axes)]
            src = str(self.t.operator("Slice", src, *bounds, results=[result]))
        return self.t.reshape(src, (self.count,))

    def repeat(self, value: Number, dtype: DType) -> str:
        """As many updates of one value: a number, or an array of one element."""
        one = value if isinstance(value, str) else self.t.b.constant(np.asarray(value, types.to_numpy(dtype)))
        return self.t.expand(self.t.reshape(self.t.cast(one, dtype), (1,)), (self.count,))

    def put(self, data: str, updates: str, reduction: str) -> str:
        """``data`` with the updates, in its own shape."""
        shape = self.t.shape_of(data)
        written = put_rows(self.t, self.t.reshape(data, (self.size,)), self.flat(), updates, reduction)
        return self.t.reshape(written, shape)


def _fits(count: Dim, extent: Dim) -> bool:
    return dim(count - extent) == 0 or (isinstance(count, int) and isinstance(extent, int) and count <= extent)


@translates("scatter.value")
@translates("scatter.value_reduce", derivative="aten")
def scatter_value(t: Translation, self: str, dim: int, index: str, value: Number, reduce: str | None = None) -> str:
    return _scattered_value(t, self, dim, index, value, "none" if reduce is None else _REDUCTIONS[reduce])


@translates("scatter.src", "scatter_add")
@translates("scatter.reduce", derivative="aten")
def scatter(t: Translation, self: str, dim: int, index: str, src: str, reduce: str | None = None) -> str:
    reduction = "add" if t.label == "scatter_add" else "none" if reduce is None else _REDUCTIONS[reduce]
    at = _Along(t, self, dim, index)
    if at.is_empty:
        return self
    check_reduction(t, reduction != "none")
    return at.put(self, at.updates(src), reduction)


def _scattered_value(t: Translation, data: str, dimension: int, index: str, value: Number, reduction: str) -> str:
    at = _Along(t, data, dimension, index)
    if at.is_empty:
        return data
    check_reduction(t, reduction != "none")
    return at.put(data, at.repeat(value, t.dtype), reduction)


# -------------------------------------------------------------------- reductions into places


@translates("scatter_reduce.two", derivative="aten")
def scatter_reduce(t: Translation, self: str, dim: int, index: str, src: str, reduce: str, include_self: bool) -> str:
    return _reduce(t, _Along(t, self, dim, index), self, src, reduce, include_self)


@translates("index_reduce", derivative="aten")
def index_reduce(t: Translation, self: str, dim: int, index: str, source: str, reduce: str, include_self: bool) -> str:
    """Rows are elements that all have the index of their row."""
    shape = t.shape_of(at_least_1d(t, source))
    axis = dim % len(shape)
    along = t.reshape(index, [n if k == axis else 1 for k, n in enumerate(shape)])
    return _reduce(t, _Along(t, self, dim, t.expand(along, shape)), self, source, reduce, include_self)


def _reduce(t: Translation, at: _Along, data: str, src: str, reduce: str, include: bool) -> str:
    if at.is_empty:
        return data
    check_reduction(t, True)
    if reduce == "mean":
        return _mean(t, at, data, src, include)
    start = data if include else at.put(data, at.repeat(_identity(reduce, t.dtype), t.dtype), "none")
    return at.put(start, at.updates(src), _REDUCTIONS[reduce])


def _identity(reduce: str, dtype: DType) -> float:
    if reduce in ("sum", "prod"):
        return int(reduce == "prod")
    sign = -1 if reduce == "amax" else 1
    if types.is_float(dtype):
        return sign * np.inf
    limits = np.iinfo(types.to_numpy(dtype))
    return limits.min if sign < 0 else limits.max


def _mean(t: Translation, at: _Along, data: str, src: str, include: bool) -> str:
    """Sums divided by counts; integers round down."""
    if types.is_narrow(t.dtype):
        raise Unsupported("means of half precision, whose sums PyTorch rounds")
    start = data if include else at.put(data, at.repeat(0, t.dtype), "none")
    total = at.put(start, at.updates(src), "add")
    one = t.b.constant(np.asarray(int(include), types.to_numpy(t.dtype)))
    counts = at.put(t.expand(one, t.shape), at.repeat(1, t.dtype), "add")
    if types.is_float(t.dtype):
        return t.kernel(lambda s, n: s / scalar.maximum(n, 1), total, counts)
    return t.kernel(lambda s, n: _floor(s, scalar.maximum(n, 1)), total, counts)


def _floor(a: sympy.Expr, b: sympy.Expr) -> sympy.Expr:
    return scalar.idiv(a - scalar.pymod(a, b), b)


# -------------------------------------------------------------------- masks


@translates("masked_scatter")
def masked_scatter(t: Translation, self: str, mask: str, source: str) -> str:
    """The k-th element that the mask takes is the k-th of the source."""
    if t.graph.size(source) == 0 or 0 in t.shape:
        return t.expand(self, t.shape)
    size = product(t.shape)
    flat = t.reshape(t.expand(mask, t.shape), (size,))
    counted = Promise((size,), dace.int64)
    before = t.operator("CumSum", t.cast(flat, dace.int64), t.b.constant(np.asarray(0)), results=[counted], exclusive=1)
    out = t.graph.add_array("masked_scatter", (size,), t.dtype)
    t.b.map(
        (size,),
        {
            "x": (t.reshape(t.expand(self, t.shape), (size,)), lambda i: (i,)),
            "m": (flat, lambda i: (i,)),
            "k": (before, lambda i: (i,)),
            "s": (t.reshape(source, (t.graph.size(source),)), lambda i: (None,)),
        },
        {"out": (out, lambda i: (i,))},
        lambda i, x, m, k, s: scalar.select(m, scalar.load(s, scalar.select(m, k, 0)), x),
        label="masked_scatter",
    )
    return t.reshape(out, t.shape)


# -------------------------------------------------------------------- parts that are replaced


@translates("slice_scatter", derivative="aten")
def slice_scatter(t: Translation, self: str, src: str, dim: int, start: Dim | None, end: Dim | None, step: int) -> str:
    """One map: each element looks whether the slice has it."""
    shape, axis = t.shape, dim % len(t.shape)
    count = t.shape_of(src)[axis]
    first = _first(0 if start is None else start, shape[axis])
    if not isinstance(step, int):
        raise Unsupported(f"a slice with the step {step}; expected a number")
    if count == 0:
        return self
    if step == 1 and first == 0 and _same(count, shape[axis]):
        return src
    if step == 1 and _is_written_in_rows(t, self, src, axis):
        return t.note_changing(put_slice(t, self, axis, first, t.cast(src, t.dtype)))

    def element(i: tuple[sympy.Symbol, ...], x: sympy.Expr, s: sympy.Expr) -> sympy.Expr:
        ahead = i[axis] - first
        place = ahead if step == 1 else scalar.idiv(ahead, step)
        is_inside = scalar.logical_and(scalar.ge(ahead, 0), scalar.lt(place, count))
        if step != 1:
            is_inside = scalar.logical_and(is_inside, scalar.eq(scalar.pymod(ahead, step), 0))
        value = scalar.load(s, *i[:axis], scalar.clamp(place, count), *i[axis + 1 :])
        return scalar.select(is_inside, value, x)

    return _replace(t, self, src, element)


def _is_written_in_rows(t: Translation, x: str, src: str, axis: int) -> bool:
    """Whether a slice of an argument that the call changes is replaced, small enough to be written where the argument
    is, by rows that are long enough. Calls that are differentiated stay one kernel, as their gradients are."""
    width = product(t.shape[axis + 1 :])
    part, whole = t.shape_of(src)[axis], t.shape[axis]
    is_small = not (isinstance(part, int) and isinstance(whole, int) and 2 * part > whole)
    is_wide = not isinstance(width, int) or width >= WIDE
    return t.whole is None and t.is_changing(x) and is_small and is_wide


def _same(a: Dim, b: Dim) -> bool:
    return dim(a - b) == 0


def _first(start: object, extent: Dim) -> Dim:
    """Where a slice starts, as ATen clamps it."""
    if not isinstance(start, int):
        return start
    if isinstance(extent, int):
        return min(max(start + extent if start < 0 else start, 0), extent)
    return scalar.maximum(start + extent, 0) if start < 0 else start


def _replace(t: Translation, x: str, src: str, element: Any) -> str:
    out = t.graph.add_array(t.label, t.shape, t.dtype)
    rank = len(t.shape_of(src))
    reads = {"x": (x, lambda *i: i), "s": (t.cast(src, t.dtype), lambda *i: (None,) * rank)}
    t.b.map(t.shape, reads, {"out": (out, lambda *i: i)}, element)
    return out


@translates("diagonal_scatter", derivative="aten")
def diagonal_scatter(t: Translation, self: str, src: str, offset: int, dim1: int, dim2: int) -> str:
    rank = len(t.shape)
    row, column = dim1 % rank, dim2 % rank
    count = t.shape_of(src)[-1]
    if 0 in t.shape_of(src):
        return self

    def element(i: tuple[sympy.Symbol, ...], x: sympy.Expr, s: sympy.Expr) -> sympy.Expr:
        place = i[row] if offset >= 0 else i[column]
        rest = [p for k, p in enumerate(i) if k not in (row, column)]
        value = scalar.load(s, *rest, scalar.clamp(place, count))
        return scalar.select(scalar.eq(i[column] - i[row], offset), value, x)

    return _replace(t, self, src, element)


@translates("as_strided_scatter", derivative="aten")
def as_strided_scatter(
    t: Translation, self: str, src: str, size: list[Dim], stride: list[Dim], storage_offset: Dim
) -> str:
    check_memory(t, self, size, stride, storage_offset)
    raise Unsupported("replaced elements of another layout")

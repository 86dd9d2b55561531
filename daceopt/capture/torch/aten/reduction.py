"""Sums, products, means, extrema and their places, over some axes or all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dace
import torch

from daceopt.capture.torch.aten.shape import axis_in
from daceopt.capture.torch.calls import Promise
from daceopt.capture.torch.table import translates
from daceopt.capture.torch.translation import Translation
from daceopt.errors import Unsupported
from daceopt.ir.scalar import scalar, types
from daceopt.ir.scalar.dims import Dim, Shape
from daceopt.ops.families.reduction import arg_extremum

# -------------------------------------------------------------------- shared with other families


def axes_of(t: Translation, name: str, dims: int | Sequence[int] | None) -> tuple[int, ...]:
    """The axes that ``dims`` name, in order; None and the empty list stand for all of them."""
    rank = len(t.shape_of(name))
    dims = [dims] if isinstance(dims, int) else dims
    return tuple(sorted({axis_in(d, rank) for d in dims if rank})) if dims else tuple(range(rank))


def reduced_shape(shape: Shape, axes: Sequence[int], keepdim: bool) -> tuple[Dim, ...]:
    """``shape`` without ``axes``, or with extents of 1 in their place."""
    return tuple(1 if k in axes else n for k, n in enumerate(shape) if keepdim or k not in axes)


def reduce(t: Translation, op_type: str, x: str, axes: Sequence[int], keepdim: bool) -> str:
    """One of ONNX's reductions of ``x`` in its own type; ``x`` itself where there is nothing to reduce."""
    if not axes:
        return x
    promise = Promise(reduced_shape(t.shape_of(x), axes, keepdim), t.dtype_of(x))
    return t.operator(op_type, x, t.integers(axes), results=[promise], keepdims=int(keepdim))


def flat(t: Translation, x: str) -> str:
    """``x`` as a vector."""
    return t.reshape(x, (t.graph.size(x),))


def _refuse_bool(t: Translation) -> None:
    if types.is_bool(t.dtype):
        raise Unsupported("a sum or product in bool; expected a number type")


# -------------------------------------------------------------------- sums, products, means


@translates("sum", "sum.dim_IntList")
def sum_(t: Translation, self: str, dtype: object, dim: list[int] | None = None, keepdim: bool = False) -> str:
    _refuse_bool(t)
    return reduce(t, "ReduceSum", t.cast(self, t.dtype), axes_of(t, self, dim), keepdim)


@translates("mean", "mean.dim")
def mean(t: Translation, self: str, dtype: object, dim: list[int] | None = None, keepdim: bool = False) -> str:
    return reduce(t, "ReduceMean", t.cast(self, t.dtype), axes_of(t, self, dim), keepdim)


@translates("prod", "prod.dim_int")
def prod(t: Translation, self: str, dtype: object, dim: int | None = None, keepdim: bool = False) -> str:
    _refuse_bool(t)
    return reduce(t, "ReduceProd", t.cast(self, t.dtype), axes_of(t, self, dim), keepdim)


@translates("logsumexp", derivative="aten")
def logsumexp(t: Translation, self: str, dim: list[int], keepdim: bool) -> str:
    x = t.cast(self, t.dtype)
    if t.shape_of(x):
        return reduce(t, "ReduceLogSumExp", x, axes_of(t, x, dim), keepdim)
    vector = t.reshape(x, (1,))
    return reduce(t, "ReduceLogSumExp", vector, (0,), False)


# -------------------------------------------------------------------- any, all


def _axes_or_none(t: Translation, self: str, dim: list[int] | None) -> tuple[int, ...]:
    """Here an empty list of axes may mean none of them: the promised shape tells."""
    untouched = dim == [] and len(t.shape) == len(t.shape_of(self)) and all(n != 1 for n in t.shape)
    return () if untouched else axes_of(t, self, dim)


@translates("any", "any.dim", "any.dims", "all", "all.dim", "all.dims")
def truth(t: Translation, self: str, dim: Any = None, keepdim: bool = False) -> str:
    op_type = "ReduceMax" if t.label == "any" else "ReduceMin"
    return t.cast(reduce(t, op_type, t.cast(self, dace.bool_), _axes_or_none(t, self, dim), keepdim), t.dtype)


# -------------------------------------------------------------------- extrema


def _refuse_empty(t: Translation, self: str) -> None:
    """A result with elements from none: ATen has the error for it."""
    if 0 in t.shape_of(self) and 0 not in t.shape:
        raise Unsupported("the extremum of an array without elements")


@translates("amax", "amin", "max", "min", derivative="aten")
def extremum(t: Translation, self: str, dim: list[int] | None = None, keepdim: bool = False) -> str:
    _refuse_empty(t, self)
    return reduce(t, _reduction_of(t), self, axes_of(t, self, dim), keepdim)


def _reduction_of(t: Translation) -> str:
    return "ReduceMax" if t.label.endswith("max") else "ReduceMin"


@translates("aminmax", derivative="aten")
def aminmax(t: Translation, self: str, dim: int | None, keepdim: bool) -> tuple[str, str]:
    _refuse_empty(t, self)
    axes = axes_of(t, self, dim)
    low, high = (reduce(t, op_type, self, axes, keepdim) for op_type in ("ReduceMin", "ReduceMax"))
    if dim is None and keepdim:
        low, high = (t.reshape(n, t.shape) for n in (low, high))
    return low, high


@translates("max.dim", "min.dim", derivative="aten")
def extremum_and_place(t: Translation, self: str, dim: int, keepdim: bool) -> tuple[str, str]:
    """The extremum and where it is first; NaN is one."""
    if not t.shape_of(self):
        return self, t.b.full((), 0, dace.int64)
    axis = axis_in(dim, len(t.shape_of(self)))
    best = reduce(t, _reduction_of(t), self, [axis], True)
    place = arg_extremum(t.b, t.label, self, axis, keepdim, best=best)
    return best if keepdim else t.reshape(best, t.shape), place


@translates("argmax", "argmin")
def place_of_extremum(t: Translation, self: str, dim: int | None, keepdim: bool) -> str:
    kind = t.label.removeprefix("arg")
    if not t.shape_of(self):
        return t.b.full((), 0, dace.int64)
    if dim is not None:
        return arg_extremum(t.b, kind, self, axis_in(dim, len(t.shape_of(self))), keepdim)
    return t.reshape(arg_extremum(t.b, kind, flat(t, self), 0, False), t.shape)


# -------------------------------------------------------------------- sums that leave out NaN


@translates("nansum", derivative="aten")
def nansum(t: Translation, self: str, dim: Any, keepdim: bool, dtype: torch.dtype | None) -> str:
    axes, x = axes_of(t, self, dim), t.cast(self, t.dtype)
    _refuse_bool(t)
    if not types.is_float(t.dtype):
        return reduce(t, "ReduceSum", x, axes, keepdim)
    out = t.graph.add_array("nansum", t.shape, t.dtype)
    return t.b.reduce("sum", lambda v: scalar.select(scalar.isnan(v), 0, v), x, axes=axes, keepdims=keepdim, out=out)

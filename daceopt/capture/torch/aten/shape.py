"""Views: arrays read with another shape, order of axes, or in part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dace

from daceopt.capture.torch.table import translates
from daceopt.capture.torch.translation import Promise, Translation
from daceopt.errors import Unsupported
from daceopt.ir.graph import Dim, dim

_END = 2**63 - 1  # where ATen leaves the end of a slice open


def extents_of(t: Translation, values: Sequence[Dim]) -> str:
    """An int64 operand with these values, whose contents stay known where they are expressions."""
    found = t.integers(values)
    if found is not None:
        return found
    out = t.graph.add_array("sizes", (len(values),), dace.int64)
    t.graph.shape_values[out] = tuple(values)
    parts = [t.reshape(t.array(v, dace.int64), (1,)) for v in values]
    t.graph.add_operator("Concat", parts, [out], {"axis": 0})
    return out


def axis_in(dimension: int, rank: int) -> int:
    """A non-negative axis; tensors of rank 0 have one for ATen."""
    return dimension % max(rank, 1)


@translates("view", "_unsafe_view", "_reshape_alias")
def view(t: Translation, self: str, size: list[Dim], stride: Any = None) -> str:
    return t.reshape(self, t.shape)


@translates("permute")
def permute(t: Translation, self: str, dims: list[int]) -> str:
    rank = len(t.shape_of(self))
    return t.transpose(self, [axis_in(d, rank) for d in dims])


@translates("transpose.int", "swapaxes")
def transpose(t: Translation, self: str, dim0: int, dim1: int) -> str:
    perm = list(range(len(t.shape_of(self))))
    if not perm:
        return self
    first, second = dim0 % len(perm), dim1 % len(perm)
    perm[first], perm[second] = perm[second], perm[first]
    return t.transpose(self, perm)


@translates("t")
def t_(t: Translation, self: str) -> str:
    return t.transpose(self, list(range(len(t.shape_of(self))))[::-1])


@translates("expand")
def expand(t: Translation, self: str, size: list[Dim], implicit: bool) -> str:
    return t.expand(self, t.shape)


@translates("unsqueeze")
def unsqueeze(t: Translation, self: str, dim: int) -> str:
    return insert_axis(t, self, dim)


def insert_axis(t: Translation, name: str, axis: int) -> str:
    """``name`` with an extent of 1 at ``axis`` of the result."""
    shape = list(t.shape_of(name))
    axis = axis % (len(shape) + 1)
    promise = Promise((*shape[:axis], 1, *shape[axis:]), t.dtype_of(name))
    return str(t.operator("Unsqueeze", name, t.integers([axis]), results=[promise]))


def drop_axes(t: Translation, name: str, axes: Sequence[int]) -> str:
    """``name`` without ``axes``, whose extents are 1."""
    shape = t.shape_of(name)
    if not axes:
        return name
    promise = Promise(tuple(n for k, n in enumerate(shape) if k not in axes), t.dtype_of(name))
    return str(t.operator("Squeeze", name, t.integers(sorted(axes)), results=[promise]))


@translates("squeeze")
def squeeze(t: Translation, self: str) -> str:
    return _squeezed(t, self, range(len(t.shape_of(self))))


@translates("squeeze.dim")
def squeeze_dim(t: Translation, self: str, dim: int) -> str:
    return _squeezed(t, self, [dim])


@translates("squeeze.dims")
def squeeze_dims(t: Translation, self: str, dim: list[int]) -> str:
    return _squeezed(t, self, dim)


def _squeezed(t: Translation, name: str, dims: Sequence[int]) -> str:
    """Extents of 1 among ``dims`` go; of an extent that is a symbol, PyTorch's promise says that it is not 1."""
    shape = t.shape_of(name)
    wanted = {axis_in(d, len(shape)) for d in dims} if shape else set()
    return drop_axes(t, name, [k for k in sorted(wanted) if shape[k] == 1])


# -------------------------------------------------------------------- parts


@translates("slice.Tensor")
def slice_(t: Translation, self: str, dim: int, start: Any, end: Any, step: int) -> str:
    shape = t.shape_of(self)
    axis = dim % len(shape)
    return taken(t, self, axis, 0 if start is None else start, _END if end is None else end, step, t.shape[axis])


def taken(t: Translation, name: str, axis: int, start: Any, end: Any, step: Any, count: Dim) -> str:
    """``count`` elements along ``axis`` from ``start`` on; bounds as ATen takes them."""
    shape = t.shape_of(name)
    if not isinstance(step, int):
        raise Unsupported(f"a slice with the step {step}; expected a number")
    if step == 1 and dim(count - shape[axis]) == 0:
        return name
    promise = Promise((*shape[:axis], count, *shape[axis + 1 :]), t.dtype_of(name))
    operands = [extents_of(t, [start]), extents_of(t, [end]), t.integers([axis]), t.integers([step])]
    return str(t.operator("Slice", name, *operands, results=[promise]))


@translates("select.int")
def select(t: Translation, self: str, dim: int, index: Any) -> str:
    return picked(t, self, dim % len(t.shape_of(self)), index)


def picked(t: Translation, name: str, axis: int, index: Any) -> str:
    """The part at ``index`` of ``axis``, which goes."""
    end = _END if index == -1 else index + 1
    return drop_axes(t, taken(t, name, axis, index, end, 1, 1), [axis])


@translates("split.Tensor", "unsafe_split.Tensor")
def split(t: Translation, self: str, split_size: Any, dim: int) -> Any:
    return _parts(t, self, dim)


@translates("split_with_sizes", "unsafe_split_with_sizes")
def split_with_sizes(t: Translation, self: str, split_sizes: list[Dim], dim: int) -> Any:
    return _parts(t, self, dim)


def _parts(t: Translation, name: str, dimension: int) -> Any:
    axis = dimension % len(t.shape_of(name))
    if len(t.promised) == 1:
        return (name,)
    sizes = extents_of(t, [p.shape[axis] for p in t.promised])
    return t.operator("Split", name, sizes, axis=axis)


@translates("unbind.int")
def unbind(t: Translation, self: str, dim: int) -> Any:
    shape = t.shape_of(self)
    axis = dim % len(shape)
    if len(t.promised) == 1:
        return (drop_axes(t, self, [axis]),)
    part = Promise((*shape[:axis], 1, *shape[axis + 1 :]), t.dtype)
    sizes = t.integers([1] * len(t.promised))
    found = t.operator("Split", self, sizes, axis=axis, results=[part] * len(t.promised)) if t.promised else ()
    return tuple(drop_axes(t, n, [axis]) for n in found)


@translates("alias", "lift", "lift_fresh", "_lazy_clone")
def alias(t: Translation, self: str) -> str:
    return self

"""Views: arrays read with another shape, order of axes, or in part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import dace
import numpy as np

from daceopt.capture.torch.aten.indexing import at_least_1d, take_at
from daceopt.capture.torch.aten.memory_axes import memory_axes
from daceopt.capture.torch.calls import NumberArray, Promise
from daceopt.capture.torch.strides import dense_order
from daceopt.capture.torch.table import translates
from daceopt.capture.torch.translation import Translation
from daceopt.errors import CaptureError, Unsupported
from daceopt.ir.scalar.affine import quotient
from daceopt.ir.scalar.dims import Dim, dim
from daceopt.ops.core.assumptions import assume
from daceopt.ops.families.cyclic_shift import shift_cyclically

_END = 2**63 - 1  # where ATen leaves the end of a slice open


def extents_of(t: Translation, values: Sequence[Dim]) -> str:
    """An int64 operand with these values, whose contents stay known where they are expressions."""
    integers = t.integers(values)
    if integers is not None:
        return integers
    out = t.graph.add_array("sizes", (len(values),), dace.int64)
    t.graph.source.shape_values[out] = tuple(values)
    parts = [t.reshape(t.array(v, dace.int64), (1,)) for v in values]
    t.graph.add_operator("Concat", parts, [out], {"axis": 0})
    return out


def axis_in(dimension: int, rank: int) -> int:
    """A non-negative axis; tensors of rank 0 have one for ATen."""
    return dimension % max(rank, 1)


@translates("view", "_unsafe_view", "_reshape_alias")
def view(t: Translation, self: str, size: list[Dim], stride: Sequence[Dim] | None = None) -> str:
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
    return t.operator("Unsqueeze", name, t.integers([axis]), results=[promise])


def drop_axes(t: Translation, name: str, axes: Sequence[int]) -> str:
    """``name`` without ``axes``, whose extents are 1."""
    shape = t.shape_of(name)
    if not axes:
        return name
    promise = Promise(tuple(n for k, n in enumerate(shape) if k not in axes), t.dtype_of(name))
    return t.operator("Squeeze", name, t.integers(sorted(axes)), results=[promise])


@translates("squeeze", "squeeze.dim", "squeeze.dims")
def squeeze(t: Translation, self: str, dim: int | list[int] | None = None) -> str:
    """Extents of 1 are removed (among ``dim``); of an extent that is a symbol PyTorch's promise says that it is not
    1."""
    shape = t.shape_of(self)
    dims = range(len(shape)) if dim is None else [dim] if isinstance(dim, int) else dim
    axes = {axis_in(d, len(shape)) for d in dims} if shape else set()
    return drop_axes(t, self, [k for k in sorted(axes) if shape[k] == 1])


# -------------------------------------------------------------------- parts


@translates("slice.Tensor")
def slice_(t: Translation, self: str, dim: int, start: Dim | None, end: Dim | None, step: int) -> str:
    shape = t.shape_of(self)
    axis = dim % len(shape)
    if isinstance(start, int) and start < 0 and not isinstance(shape[axis], int):
        start = _traced_start(t, axis, start)
    return take(t, self, axis, 0 if start is None else start, _END if end is None else end, step, t.shape[axis])


def _traced_start(t: Translation, axis: int, start: int) -> Dim:
    """Where the slice starts by what PyTorch knew when it traced; ``start`` where that is not to be told."""
    assert t.call is not None
    source, result = t.call.operands[0], t.call.results[0]
    assert result is not None
    offset = t.sizes.dim(result.storage_offset() - source.storage_offset())
    stride = t.sizes.dim(source.stride(axis))
    traced = None if stride == 0 else quotient(offset, stride)
    return traced if traced is not None and assume(t.graph, traced) else start


def take(t: Translation, name: str, axis: int, start: Dim | None, end: Dim | None, step: object, count: Dim) -> str:
    """``count`` elements along ``axis`` from ``start`` on; bounds as ATen takes them."""
    shape = t.shape_of(name)
    if not isinstance(step, int):
        raise Unsupported(f"a slice with the step {step}; expected a number")
    if step == 1 and dim(count - shape[axis]) == 0:
        return name
    promise = Promise((*shape[:axis], count, *shape[axis + 1 :]), t.dtype_of(name))
    operands = [extents_of(t, [start]), extents_of(t, [end]), t.integers([axis]), t.integers([step])]
    return t.operator("Slice", name, *operands, results=[promise])


@translates("select.int")
def select(t: Translation, self: str, dim: int, index: Dim | NumberArray) -> str:
    axis = dim % len(t.shape_of(self))
    if isinstance(index, NumberArray):  # an element of a tensor
        return t.reshape(take_at(t, self, at_least_1d(t, index), axis, wraps=True), t.shape)
    return pick(t, self, axis, index)


def pick(t: Translation, name: str, axis: int, index: Dim) -> str:
    """The part at ``index`` of ``axis``, which goes."""
    end = _END if index == -1 else index + 1
    return drop_axes(t, take(t, name, axis, index, end, 1, 1), [axis])


@translates("split.Tensor", "unsafe_split.Tensor", "split_with_sizes", "unsafe_split_with_sizes")
def split(t: Translation, self: str, dim: int, **requested: object) -> tuple[str, ...]:
    """The promised results say how large the parts are."""
    axis = dim % len(t.shape_of(self))
    if len(t.promised) == 1:
        return (self,)
    sizes = extents_of(t, [p.shape[axis] for p in t.promised])
    return t.operators("Split", self, sizes, axis=axis)


@translates("unbind.int")
def unbind(t: Translation, self: str, dim: int) -> tuple[str, ...]:
    shape = t.shape_of(self)
    axis = dim % len(shape)
    if not t.promised:  # of an axis without elements
        return ()
    if len(t.promised) == 1:
        return (drop_axes(t, self, [axis]),)
    part = Promise((*shape[:axis], 1, *shape[axis + 1 :]), t.dtype)
    sizes = t.integers([1] * len(t.promised))
    parts = t.operators("Split", self, sizes, axis=axis, results=[part] * len(t.promised))
    return tuple(drop_axes(t, n, [axis]) for n in parts)


# -------------------------------------------------------------------- elements in another order


@translates("flip")
def flip(t: Translation, self: str, dims: list[int]) -> str:
    rank = len(t.shape)
    axes = {axis_in(d, rank) for d in dims} if rank else set()
    if not axes or 0 in t.shape:
        return self
    return _map_by_index(t, self, lambda i: [t.shape[k] - 1 - p if k in axes else p for k, p in enumerate(i)])


@translates("roll")
def roll(t: Translation, self: str, shifts: list[Dim], dims: list[int]) -> str:
    """Without axes the elements move along the flattened tensor."""
    if not t.shape or 0 in t.shape or not shifts:
        return self
    if not dims:
        count = t.graph.size(self)
        return t.reshape(_roll(t, t.reshape(self, (count,)), {0: shifts[0]}), t.shape)
    moved: dict[int, Any] = {}
    for shift, axis in zip(shifts, dims, strict=True):
        moved[axis % len(t.shape)] = moved.get(axis % len(t.shape), 0) + shift
    return _roll(t, self, moved)


def _roll(t: Translation, name: str, moved: dict[int, Any]) -> str:
    """Parts before and behind where the last elements come to be, joined."""
    for axis, shift in moved.items():
        shape = t.shape_of(name)
        extent = shape[axis]
        if not isinstance(extent, int) and isinstance(shift, int):
            results = [Promise(shape, t.dtype)]
            name = t.operator("Roll", name, domain="daceopt", axis=axis, shift=shift, results=results)
        elif not isinstance(shift, int):
            name = _roll_by_index(t, name, axis, shift)
        elif shift % extent:
            cut = extent - shift % extent
            parts = [take(t, name, axis, cut, _END, 1, extent - cut), take(t, name, axis, 0, cut, 1, cut)]
            name = t.operator("Concat", *parts, axis=axis, results=[Promise(shape, t.dtype)])
    return name


def _roll_by_index(t: Translation, name: str, axis: int, shift: object) -> str:
    out = t.graph.add_array("roll", t.shape_of(name), t.dtype)
    shift_cyclically(t.b, name, out, axis, shift)
    return out


@translates("repeat")
def repeat(t: Translation, self: str, repeats: list[Dim]) -> str:
    shape = t.shape_of(self)
    spread = (*(1,) * (len(repeats) - len(shape)), *shape)
    if all(r == 1 for r in repeats):
        return t.reshape(self, spread)
    if 0 in t.shape:
        return t.b.full(t.shape, 0, t.dtype)
    return t.operator("Tile", t.reshape(self, spread), extents_of(t, repeats))


@translates("diagonal")
def diagonal(t: Translation, self: str, offset: int, dim1: int, dim2: int) -> str:
    if 0 in t.shape:
        return t.b.full(t.shape, 0, t.dtype)
    rank = len(t.shape_of(self))
    row, column = dim1 % rank, dim2 % rank

    def index(i: Sequence[Any]) -> list[Any]:
        rest, along = iter(i[:-1]), i[-1]
        places = {row: along - min(offset, 0), column: along + max(offset, 0)}
        return [places[k] if k in places else next(rest) for k in range(rank)]

    return _map_by_index(t, self, index)


@translates("unfold")
def unfold(t: Translation, self: str, dimension: int, size: int, step: int) -> str:
    """Windows along an axis, which overlap where ``step`` is smaller than ``size``."""
    shape = t.shape_of(self)
    if not shape:
        return t.expand(t.reshape(self, (1,)), t.shape)
    if 0 in t.shape:
        return t.b.full(t.shape, 0, t.dtype)
    axis = dimension % len(shape)
    return _map_by_index(t, self, lambda i: [p * step + i[-1] if k == axis else p for k, p in enumerate(i[:-1])])


def _map_by_index(t: Translation, name: str, index: Callable[[Sequence[Any]], Sequence[Any]]) -> str:
    """The elements of ``name`` at ``index`` of each position of the result, as one copy."""
    out = t.graph.add_array(t.label, t.shape, t.dtype)
    t.b.map(t.shape, {"x": (name, lambda *i: tuple(index(i)))}, {"out": (out, lambda *i: i)}, lambda i, x: x)
    return out


@translates("tril", "triu")
def triangle(t: Translation, self: str, diagonal: int) -> str:
    if not isinstance(diagonal, int):
        raise Unsupported(f"a triangle from the diagonal {diagonal} on; expected a number")
    return t.operator("Trilu", self, t.b.constant(np.asarray(diagonal, np.int64)), upper=int(t.label == "triu"))


@translates("as_strided")
def as_strided(t: Translation, self: str, size: list[Dim], stride: list[Dim], storage_offset: Dim) -> str:
    """Of a tensor that fills its memory, in any order of its axes; nothing else is known of the memory here."""
    assert t.call is not None
    if 0 in size:
        return t.b.full(t.shape, 0, t.dtype)
    order = dense_order(t.call.operands[0])
    check_memory(t, self, size, stride, storage_offset, order is not None)  # all of them are numbers then
    axes = memory_axes(size, stride, storage_offset or 0, t.graph.size(self))
    memory = t.reshape(t.transpose(self, order or ()), [axis.extent for axis in axes])
    return _map_by_index(t, memory, lambda i: [a.start + sum(p * f for p, f in zip(i, a.factors)) for a in axes])


def check_memory(
    t: Translation, name: str, size: Sequence[Dim], stride: Sequence[Dim], offset: object, dense: bool | None = None
) -> None:
    """Refuse the whole graph where elements are elsewhere in memory than in our row-major arrays, or (``dense``:
    whether they fill it in some order) outside of what the tensor has.

    ATen could not run the call either: it would be given our arrays. No elements are anywhere.
    """
    assert t.call is not None
    if 0 in size:
        return
    fake, last = t.call.operands[0], dim(offset or 0)
    numbers = all(isinstance(n, int) for n in (*size, *stride, last, *t.shape_of(name)))
    if numbers:
        last = dim(last + sum((n - 1) * s for n, s in zip(size, stride)))
    is_dense = numbers and (fake.is_contiguous() if dense is None else dense) and fake.storage_offset() == 0
    if not is_dense or last >= t.graph.size(name):
        raise CaptureError(
            f"{t.label} with strides {list(stride)} from {offset} on, of a tensor whose memory is not known: expected "
            "a contiguous tensor of numeric sizes at the start of its memory"
        )

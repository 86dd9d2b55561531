"""Elements and rows read, and replaced, at positions that are known at run time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import dace
import numpy as np
import sympy

from daceopt.capture.torch.calls import Number, Promise
from daceopt.capture.torch.table import translates
from daceopt.capture.torch.translation import Translation
from daceopt.errors import Unsupported
from daceopt.ir.nodes.builder import broadcast_shapes
from daceopt.ir.scalar import checks, scalar, types
from daceopt.ir.scalar.dims import Dim, Shape, dim
from daceopt.ops.families.indexing import linear, position

_MASKS = ("bool", "uint8")
WIDE = 16  # elements of a row at least, for a position of its own


def product(shape: Sequence[Dim]) -> Dim:
    """Number of elements."""
    return dim(sympy.Mul(*shape))


def at_least_1d(t: Translation, name: str) -> str:
    """``name``, with one axis where it has none."""
    return name if t.shape_of(name) else t.reshape(name, (1,))


def take_at(t: Translation, data: str, indices: str, axis: int, wraps: bool, blank: int | None = None) -> str:
    """Rows of ``data`` along ``axis``, in the place of which the axes of ``indices`` are."""
    if types.name_of(t.dtype_of(indices)) in _MASKS:
        raise Unsupported("indices that are a mask: how many elements they take, only the data says")
    shape = t.shape_of(data)
    result = (*shape[:axis], *t.shape_of(indices), *shape[axis + 1 :])
    if shape[axis] == 0:
        raise Unsupported("indices into an axis without elements")
    promise = Promise(result, t.dtype_of(data))
    options = {"axis": axis, "wraps": int(wraps), "blank": blank}
    return t.operator("Take", data, indices, domain="daceopt", results=[promise], **options)


@translates("index_select")
def index_select(t: Translation, self: str, dim: int, index: str) -> str:
    data = at_least_1d(t, self)
    return t.reshape(take_at(t, data, at_least_1d(t, index), dim % len(t.shape_of(data)), wraps=False), t.shape)


@translates("embedding")
def embedding(
    t: Translation, weight: str, indices: str, padding_idx: Any, scale_grad_by_freq: bool, sparse: bool
) -> str:
    if scale_grad_by_freq or sparse:
        raise Unsupported("an embedding with sparse gradients, or gradients scaled by frequency")
    return take_at(t, weight, indices, 0, wraps=False, blank=None if padding_idx == -1 else padding_idx)


@translates("gather")
def gather(t: Translation, self: str, dim: int, index: str, sparse_grad: bool) -> str:
    if sparse_grad:
        raise Unsupported("a gather with sparse gradients")
    data, places = at_least_1d(t, self), at_least_1d(t, index)
    axis = dim % len(t.shape_of(data))
    if 0 in t.shape_of(places):
        return t.b.full(t.shape, 0, t.dtype)
    if t.shape_of(data)[axis] == 0:
        raise Unsupported("indices into an axis without elements")
    promise = Promise(t.shape_of(places), t.dtype)
    elements = t.operator("TakeAlong", data, places, domain="daceopt", results=[promise], axis=axis)
    return t.reshape(elements, t.shape)


# -------------------------------------------------------------------- x[i, :, j]


class Places:
    """Where ``x[indices]`` reads: ``front`` brings the indexed axes to the front, ``flat`` are row-major positions in
    them, ``rows`` how many there are."""

    def __init__(self, t: Translation, shape: Shape, indices: Sequence[str | None]) -> None:
        self.axes = [k for k, n in enumerate(indices) if n is not None]
        self.names = [str(n) for n in indices if n is not None]
        if any(types.name_of(t.dtype_of(n)) in _MASKS for n in self.names):
            raise Unsupported("indices that are a mask: how many elements they take, only the data says")
        rest = [k for k in range(len(shape)) if k not in self.axes]
        self.front = [*self.axes, *rest]
        self.extents = [shape[k] for k in self.axes]
        self.kept = [shape[k] for k in rest]
        self.rows = product(self.extents)
        self.shape = broadcast_shapes(*(t.shape_of(n) for n in self.names))
        if self.rows == 0 and product(self.shape) != 0:
            raise Unsupported("indices into an axis without elements")
        self.is_adjacent = self.axes == list(range(self.axes[0], self.axes[0] + len(self.axes)))

    def flat(self, t: Translation) -> str:
        """One index per place; with a single indexed axis, its own index, which may be negative."""
        if len(self.names) == 1:
            return self.names[0]
        out = t.graph.add_array("position", self.shape, dace.int64)
        t.b.elementwise(self._linear, *self.names, out=out, dtype=dace.int64, label="position")
        return out

    def _linear(self, *index: object) -> sympy.Expr:
        places = [position(k, n) for k, n in zip(index, self.extents)]
        return linear(places, self.extents, range(len(places)))


@translates("index.Tensor", "_unsafe_index.Tensor")
def index(t: Translation, self: str, indices: list[str | None]) -> str:
    """The axes of the broadcast indices are where the indexed axes stood, or in front where those are apart."""
    if 0 in t.shape:
        return t.b.full(t.shape, 0, t.dtype)
    shape = t.shape_of(self)
    at = Places(t, shape, indices)
    flat = at.flat(t)
    if at.is_adjacent:
        first, last = at.axes[0], at.axes[-1]
        rows = t.reshape(self, (*shape[:first], at.rows, *shape[last + 1 :]))
        return take_at(t, rows, flat, first, wraps=True)
    rows = t.reshape(t.transpose(self, at.front), (at.rows, *at.kept))
    return take_at(t, rows, flat, 0, wraps=True)


@translates("index_put", "_unsafe_index_put", "_index_put_impl")
def index_put(
    t: Translation, self: str, indices: list[str | None], values: str, accumulate: bool, unsafe: bool = False
) -> str:
    present = [n for n in indices if n is not None]
    if any(types.name_of(t.dtype_of(n)) in _MASKS for n in present):
        return _masked_put(t, self, indices, values, accumulate)
    if 0 in t.shape or any(0 in t.shape_of(n) for n in present):
        return self
    check_reduction(t, accumulate)
    at, reduction = Places(t, t.shape, indices), "add" if accumulate else "none"
    if at.is_adjacent:
        first, last = at.axes[0], at.axes[-1]
        return _put_between(
            t, self, (first, last + 1), at.flat(t), _spread_values(t, values, at), reduction, wraps=True
        )
    rows = t.reshape(t.transpose(self, at.front), (at.rows, *at.kept))
    written = put_rows(t, rows, at.flat(t), _spread_values(t, values, at), reduction)
    restored = t.reshape(written, [t.shape[k] for k in at.front])
    return t.transpose(restored, [at.front.index(k) for k in range(len(t.shape))])


@translates("one_hot")
def one_hot(t: Translation, self: str, num_classes: object) -> str:
    """1 at the place of the label; one that is no class is an error."""
    if num_classes == -1:
        raise Unsupported("as many classes as the data have; expected their number")
    out = t.graph.add_array("one_hot", t.shape, t.dtype)

    def element(i: tuple[sympy.Symbol, ...], k: sympy.Expr) -> sympy.Expr:
        inside = scalar.logical_and(scalar.ge(k, 0), scalar.lt(k, num_classes))
        return scalar.select(scalar.eq(scalar.checked(inside, k, checks.LABEL), i[-1]), 1, 0)

    t.b.map(t.shape, {"k": (self, lambda *i: i[:-1])}, {"out": (out, lambda *i: i)}, element, label="one_hot")
    return out


@translates("index_add")
def index_add(t: Translation, self: str, dim: int, index: str, source: str, alpha: Number) -> str:
    check_reduction(t, True)
    if alpha != 1:
        factor = t.array(alpha, types.compute_type(t.dtype))
        source = t.b.elementwise(lambda s, a: s * a, source, factor, dtype=t.dtype, label="scaled")
    return _rows_put(t, self, dim, index, source, "add")


@translates("index_copy")
def index_copy(t: Translation, self: str, dim: int, index: str, source: str) -> str:
    return _rows_put(t, self, dim, index, source, "none")


def _rows_put(t: Translation, self: str, dim: int, index: str, source: str, reduction: str) -> str:
    """``self`` with rows of ``source`` put along ``dim``; an index below 0 is an error."""
    if 0 in t.shape or 0 in t.shape_of(index):
        return self
    data, rows = at_least_1d(t, self), at_least_1d(t, source)
    axis = dim % len(t.shape_of(data))
    put = _put_between(t, data, (axis, axis + 1), at_least_1d(t, index), rows, reduction, wraps=False)
    return t.reshape(put, t.shape)


def _put_between(
    t: Translation, data: str, axes: tuple[int, int], flat: str, updates: str, reduction: str, wraps: bool
) -> str:
    """``data`` after what is at the positions ``flat`` in the axes from the first of ``axes`` to before the second, for
    each index of the axes in front, was replaced by ``updates`` or combined with them. ``wraps``: negative positions
    count from the end."""
    extent, count = product(t.shape_of(data)[slice(*axes)]), product(t.shape_of(flat))
    reads = {"k": (t.reshape(flat, (count,)), lambda o, i: (i,))}

    def place(i: sympy.Symbol, k: sympy.Expr) -> sympy.Expr:
        return position(k, extent) if wraps else scalar.cast(k, dace.int64)

    return _put_places(t, data, axes, (count, reads, place), updates, reduction)


def put_slice(t: Translation, data: str, axis: int, first: Dim, updates: str) -> str:
    """``data`` after what is along ``axis`` from ``first`` on was replaced by ``updates``."""
    places: RowPlaces = (t.shape_of(updates)[axis], {}, lambda i: i + first)
    return _put_places(t, data, (axis, axis + 1), places, updates, "none")


RowPlaces: TypeAlias = tuple[Dim, Mapping[str, Any], Callable[..., Any]]


def _put_places(
    t: Translation, data: str, axes: tuple[int, int], places: RowPlaces, updates: str, reduction: str
) -> str:
    """The same at ``places`` (how many, what a kernel reads for them, and the position of one in ``axes``): all in
    rows, so that an argument that a call changes is written where it is."""
    shape, (count, reads, place) = t.shape_of(data), places
    outer, extent, width = (product(shape[a:b]) for a, b in ((0, axes[0]), axes, (axes[1], len(shape))))
    if axes[0] and isinstance(width, int) and width < WIDE and not t.is_changing(data):
        return _put_in_front(t, data, axes, places, updates, reduction)
    rows = t.graph.add_array("position", (outer, count), dace.int64)

    def row(i: tuple[sympy.Symbol, ...], **k: sympy.Expr) -> sympy.Expr:
        return linear([i[0], place(i[1], **k)], (outer, extent), [1])

    t.b.map((outer, count), dict(reads), {"out": (rows, lambda *i: i)}, row, label="position")
    written = put_rows(
        t,
        t.reshape(data, (dim(outer * extent), width)),
        t.reshape(rows, (dim(outer * count),)),
        t.reshape(updates, (dim(outer * count), width)),
        reduction,
    )
    return t.reshape(written, shape)


def _put_in_front(
    t: Translation, data: str, axes: tuple[int, int], places: RowPlaces, updates: str, reduction: str
) -> str:
    """The same with ``axes`` brought to the front: else each few elements would have a position."""
    shape, (first, end) = t.shape_of(data), axes
    front = [*range(first, end), *range(first), *range(end, len(shape))]
    values = t.reshape(updates, (*shape[:first], places[0], *shape[end:]))
    order = [first, *range(first), *range(first + 1, len(t.shape_of(values)))]
    put = _put_places(t, t.transpose(data, front), (0, end - first), places, t.transpose(values, order), reduction)
    return t.transpose(put, [front.index(k) for k in range(len(shape))])


@translates("index_fill.int_Scalar", "index_fill.int_Tensor")
def index_fill(t: Translation, self: str, dim: int, index: str, value: Number) -> str:
    """Each place counts once in the value's gradient, however often the index names it."""
    if 0 in t.shape or 0 in t.shape_of(index):
        return self
    shape = t.shape_of(at_least_1d(t, self))
    axis, places = dim % len(shape), at_least_1d(t, index)
    zero, one = (t.b.constant(np.asarray([k], np.int8)) for k in (0, 1))
    filled = put_rows(t, t.expand(zero, (shape[axis],)), places, t.expand(one, t.shape_of(places)), "none")
    along = t.reshape(filled, [n if k == axis else 1 for k, n in enumerate(shape)] if t.shape else ())
    return t.kernel(lambda m, v, x: scalar.select(scalar.ne(m, 0), v, x), along, t.array(value, t.dtype), self)


def _spread_values(t: Translation, values: str, at: Places) -> str:
    """The values, broadcast to what ``x[indices]`` reads."""
    lead = at.axes[0] if at.is_adjacent else 0
    whole = (*at.kept[:lead], *at.shape, *at.kept[lead:])
    own = t.shape_of(values)
    if len(own) > len(whole):
        values = t.reshape(values, own[len(own) - len(whole) :])
        own = t.shape_of(values)
    if any(n != 1 and dim(n - m) != 0 for n, m in zip(reversed(own), reversed(whole))):
        raise Unsupported(f"values of shape {own} for places of shape {whole}, which may not fit")
    return t.expand(values, whole)


def check_reduction(t: Translation, reduces: bool) -> None:
    """Bools are replaced only."""
    if reduces and types.is_bool(t.dtype):
        raise Unsupported("a reduction of bools")


def put_rows(t: Translation, rows: str, flat: str, updates: str, reduction: str) -> str:
    """``rows`` after its rows at ``flat`` were replaced by ``updates``, or combined with them."""
    places = t.reshape(flat, (*t.shape_of(flat), 1))
    promise = Promise(t.shape_of(rows), t.dtype_of(rows))
    return t.operator("ScatterND", rows, places, updates, results=[promise], reduction=reduction)


def _masked_put(t: Translation, self: str, indices: Sequence[str | None], values: str, accumulate: bool) -> str:
    """One mask of the leading axes; values that are the same for all that it takes, or one for each."""
    mask = indices[0]
    if mask is None or len(indices) != 1:
        raise Unsupported("indices that are a mask: how many elements they take, only the data says")
    masked, shape = t.shape_of(mask), t.shape_of(values)
    rest = t.shape[len(masked) :]
    if any(dim(a - b) != 0 for a, b in zip(masked, t.shape)):
        raise Unsupported("a mask whose shape is not that of the axes that it indexes")
    if len(shape) == len(rest) + 1 and shape[0] != 1:
        return _put_by_mask(t, self, mask, values, accumulate)
    along = t.reshape(mask, (*masked, *[1] * len(rest)))
    value = t.reshape(values, shape[-len(rest) :] if rest else ())
    return t.kernel(lambda m, x, v: scalar.select(m, x + v if accumulate else v, x), along, self, value)


def _put_by_mask(t: Translation, self: str, mask: str, values: str, accumulate: bool) -> str:
    """The k-th row that the mask takes is the k-th of ``values``, or the sum with it; there are as many."""
    rows, count = product(t.shape_of(mask)), t.shape_of(values)[0]
    row_shape = t.shape[len(t.shape_of(mask)) :]
    width = product(row_shape)
    at = _taken_rows(t, t.cast(t.reshape(mask, (rows,)), dace.int64), rows, count)
    updates = t.reshape(t.expand(values, (count, *row_shape)), (count, width))
    written = put_rows(t, t.reshape(self, (rows, width)), at, updates, "add" if accumulate else "none")
    return t.reshape(written, t.shape)


def _taken_rows(t: Translation, mask: str, rows: Dim, count: Dim) -> str:
    """The ``count`` positions where ``mask`` [rows] is 1 and not 0; an error where there are more or fewer."""
    before = t.operator(
        "CumSum", mask, t.b.constant(np.asarray(0)), results=[Promise((rows,), dace.int64)], exclusive=1
    )
    total = t.b.reduce("sum", None, mask, axes=(0,), keepdims=False)
    places, own, positions = (t.graph.add_array("rows", (n,), dace.int64) for n in (rows, rows, count))

    def place(i: tuple[sympy.Symbol, ...], m: sympy.Expr, k: sympy.Expr, n: sympy.Expr) -> sympy.Expr:
        return scalar.checked(scalar.eq(n, count), scalar.select(scalar.gt(m, 0), k, count), checks.ROWS)

    inputs = {"m": (mask, lambda i: (i,)), "k": (before, lambda i: (i,)), "n": (total, lambda i: ())}
    t.b.map((rows,), inputs, {"out": (places, lambda i: (i,))}, place, label="rows")
    t.b.map((rows,), {}, {"out": (own, lambda i: (i,))}, lambda i: scalar.cast(i[0], dace.int64), label="rows")
    none = t.expand(t.b.constant(np.asarray(0)), (dim(count + 1),))
    all_of_them = put_rows(t, none, places, own, "none")  # those that are not taken are at the end
    t.b.map((count,), {"p": (all_of_them, lambda i: (i,))}, {"out": (positions, lambda i: (i,))}, lambda i, p: p)
    return positions


@translates("put")
def put(t: Translation, self: str, index: str, source: str, accumulate: bool) -> str:
    if 0 in t.shape_of(index):
        return self
    check_reduction(t, accumulate)
    count, size = product(t.shape_of(index)), product(t.shape)
    rows, flat = t.reshape(self, (size,)), t.reshape(index, (count,))
    written = put_rows(t, rows, flat, t.reshape(source, (count,)), "add" if accumulate else "none")
    return t.reshape(written, t.shape)

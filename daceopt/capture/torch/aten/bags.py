"""Sums and means over bags of rows of a table."""

from __future__ import annotations

import dace
import numpy as np

from daceopt.capture.torch.aten.indexing import put_rows, take_at
from daceopt.capture.torch.calls import Promise
from daceopt.capture.torch.table import translates
from daceopt.capture.torch.translation import Translation
from daceopt.errors import Unsupported
from daceopt.ir.scalar import scalar, types
from daceopt.ir.scalar.dims import Dim

_SUM, _MEAN = 0, 1


@translates("_embedding_bag", "_embedding_bag_forward_only")
def embedding_bag(
    t: Translation,
    weight: str,
    indices: str,
    offsets: str,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: str | None,
    include_last_offset: bool,
    padding_idx: int,
) -> tuple[str, None, None, None]:
    """The first result alone: the others are for PyTorch's own backward."""
    if scale_grad_by_freq or sparse:
        raise Unsupported("an embedding with sparse gradients, or gradients scaled by frequency")
    if mode not in (_SUM, _MEAN):
        raise Unsupported("the largest elements of bags")
    if len(t.shape_of(indices)) != 1 or 0 in (*t.shape_of(weight), *t.shape_of(indices), t.shape[0]):
        raise Unsupported("bags without elements, or a table without rows")
    wide = types.compute_type(t.dtype)
    rows = t.cast(take_at(t, weight, indices, 0, wraps=False), wide)
    ones = t.b.full(t.shape_of(indices), 1, wide)
    if per_sample_weights is not None:
        rows = t.b.elementwise(lambda x, f: x * f, rows, _column(t, t.cast(per_sample_weights, wide)))
    if padding_idx >= 0:
        rows, ones = (
            t.b.elementwise(lambda x, k: scalar.select(scalar.eq(k, padding_idx), 0, x), x, k, dtype=wide)
            for x, k in ((rows, _column(t, indices)), (ones, indices))
        )
    bags = _Bags(t, offsets, t.shape_of(indices)[0], t.shape[0])
    total = bags.sum(rows)
    if mode == _MEAN:
        count = _column(t, bags.sum(ones))
        total = t.b.elementwise(lambda x, n: x / scalar.maximum(n, 1), total, count, dtype=wide)
    return t.cast(total, t.dtype), None, None, None


def _column(t: Translation, x: str) -> str:
    return t.reshape(x, (*t.shape_of(x), 1))


class _Bags:
    """Of ``size`` positions, those of each of ``count`` bags, which begin at ``offsets``."""

    def __init__(self, t: Translation, offsets: str, size: Dim, count: Dim) -> None:
        self._t, self._size, self._count = t, size, count
        self._each = _even(t.graph.constants.get(offsets), size, count)
        self._numbers = None if self._each is not None else self._bag_numbers(offsets)

    def sum(self, x: str) -> str:
        """Of the first axis of ``x``, within each bag."""
        t, rest = self._t, self._t.shape_of(x)[1:]
        if self._each is not None:
            return str(t.b.reduce("sum", None, t.reshape(x, (self._count, self._each, *rest)), axes=[1]))
        return put_rows(t, t.b.full((self._count, *rest), 0, t.dtype_of(x)), str(self._numbers), x, "add")

    def _bag_numbers(self, offsets: str) -> str:
        """The number of the bag at each position: how many begin up to it, less one."""
        t = self._t
        first = t.cast(t.b.slice(offsets, [0], [self._count], axes=[0]), dace.int64)
        begins = t.b.full((self._size + 1,), 0, dace.int64)
        begins = put_rows(t, begins, first, t.b.full((self._count,), 1, dace.int64), "add")
        axis = t.b.constant(np.asarray(0, np.int64))
        promise = Promise((self._size + 1,), dace.int64)
        passed = t.operator("CumSum", begins, axis, results=[promise])
        return str(t.b.elementwise(lambda n: n - 1, t.b.slice(passed, [0], [self._size], axes=[0])))


def _even(offsets: np.ndarray | None, size: Dim, count: Dim) -> int | None:
    """How many elements each bag has, if all have as many."""
    if offsets is None or not isinstance(size, int) or not isinstance(count, int) or size % count:
        return None
    each = size // count
    return each if np.array_equal(offsets[:count], np.arange(count) * each) else None

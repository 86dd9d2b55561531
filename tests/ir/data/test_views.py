"""Views over an array that changes its layout: the same elements, or a refusal."""

from __future__ import annotations

import math

import dace
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided

from daceopt.ir.data.views import rebase


def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(shape[k + 1 :]) for k in range(len(shape)))


def permuted(shape: tuple[int, ...], order: tuple[int, ...]) -> tuple[int, ...]:
    """Strides that store the dimensions in ``order``, outermost first."""
    stored = row_major(tuple(shape[k] for k in order))
    return tuple(stored[order.index(k)] for k in range(len(shape)))


def laid_out(values: np.ndarray, strides: tuple[int, ...]) -> np.ndarray:
    """A flat buffer that holds ``values`` with these strides."""
    buffer = np.full(1 + sum((n - 1) * s for n, s in zip(values.shape, strides)), -1)
    as_strided(buffer, values.shape, [8 * s for s in strides])[...] = values
    return buffer


def chain(array: np.ndarray, steps: list[tuple[int, int]]) -> np.ndarray:
    """Views of ``array``: transposed, sliced, split, merged, broadcast."""
    for kind, variant in steps:
        rank = array.ndim
        if kind == 0:
            array = array.transpose(np.roll(range(rank), variant))
        elif kind == 1:
            axis = variant % rank
            array = array[(slice(None),) * axis + (slice(variant % array.shape[axis], None, 1 + variant % 2),)]
        elif kind == 2:
            new = _reshaped(array, variant)
            array = new if np.shares_memory(new, array) else array
        elif kind == 3:
            array = np.broadcast_to(array, (2, *array.shape))
        else:
            array = array[None] if variant % 2 else array[..., None]
    return array


def _reshaped(array: np.ndarray, variant: int) -> np.ndarray:
    axis = variant % array.ndim
    if variant % 2 and array.ndim > 1:
        axis = min(axis, array.ndim - 2)
        return array.reshape(*array.shape[:axis], -1, *array.shape[axis + 2 :])
    extent = array.shape[axis]
    return array.reshape(*array.shape[:axis], 2, extent // 2, *array.shape[axis + 1 :]) if extent % 2 == 0 else array


STEPS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 5)), max_size=5)


@settings(max_examples=400)
@given(
    shape=st.lists(st.integers(1, 4), min_size=1, max_size=4).map(tuple),
    orders=st.tuples(st.randoms(use_true_random=False), st.randoms(use_true_random=False)),
    steps=STEPS,
)
def test_a_view_selects_the_same_elements(shape: tuple[int, ...], orders: tuple, steps: list) -> None:
    old, new = (permuted(shape, tuple(r.sample(range(len(shape)), len(shape)))) for r in orders)
    values = np.arange(math.prod(shape)).reshape(shape)
    before, after = laid_out(values, old), laid_out(values, new)
    view = chain(as_strided(before, shape, [8 * s for s in old]), steps)
    strides = tuple(s // 8 for s in view.strides)
    offset = (view.__array_interface__["data"][0] - before.__array_interface__["data"][0]) // 8
    found = rebase(view.shape, strides, offset, shape, old, new)
    if found is None:
        return
    result = as_strided(after[int(found[1]) :], view.shape, [8 * int(s) for s in found[0]])
    np.testing.assert_array_equal(result, view)


def test_plain_views_follow() -> None:
    old, new = (12, 4, 1), (12, 1, 3)
    assert rebase((2, 4, 3), (12, 1, 4), 0, (2, 3, 4), old, new) == ((12, 3, 1), 0)
    assert rebase((2, 2, 4), (12, 4, 1), 4, (2, 3, 4), old, new) == ((12, 1, 3), 1)
    assert rebase((2, 3, 2), (12, 4, 2), 1, (2, 3, 4), old, new) == ((12, 1, 6), 3)


def test_a_merged_dimension_cannot_follow_a_permutation() -> None:
    assert rebase((2, 12), (12, 1), 0, (2, 3, 4), (12, 4, 1), (12, 1, 3)) is None


def test_what_runs_over_into_the_next_row_is_refused() -> None:
    """Ten elements from the second on are no part of one row of four."""
    assert rebase((10,), (1,), 1, (3, 4), (4, 1), (1, 3)) is None


def test_symbolic_extents() -> None:
    n = dace.symbolic.symbol("n", dace.int64)
    assert rebase((4, n), (1, 4), 0, (n, 4), (4, 1), (1, n)) in (None, ((n, 1), 0))
    assert rebase((n, 4), (4, 1), 1, (n, 4), (4, 1), (1, n)) is None


def test_negative_strides_are_refused() -> None:
    assert rebase((3, 4), (4, -1), 3, (3, 4), (4, 1), (1, 3)) is None

"""Axes of memory that ``as_strided`` reads."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daceopt.capture.torch.aten.memory_axes import MemoryAxis, memory_axes

DIMENSION = st.tuples(st.integers(1, 4), st.sampled_from((0, 1, 2, 3, 4, 6, 8, 12, 24)))


@settings(max_examples=300, deadline=None)
@given(st.lists(DIMENSION, max_size=4), st.integers(0, 13), st.integers(0, 30))
def test_places_are_those_of_the_strides(dimensions, offset, behind):
    size, stride = [n for n, _ in dimensions], [s for _, s in dimensions]
    elements = offset + sum((n - 1) * s for n, s in dimensions) + 1 + behind
    axes = memory_axes(size, stride, offset, elements)
    memory = np.arange(elements).reshape([axis.extent for axis in axes])
    for position in itertools.product(*map(range, size)):
        place = tuple(a.start + sum(p * f for p, f in zip(position, a.factors)) for a in axes)
        assert memory[place] == offset + sum(p * s for p, s in zip(position, stride))


@pytest.mark.parametrize(
    ("size", "stride", "offset", "elements", "axes"),
    [
        # Longformer's chunks of 64 tokens, each of which begins 32 behind the one before
        (
            (2, 7, 64, 32),
            (8192, 1024, 32, 1),
            0,
            16384,
            [(2, 0, (1, 0, 0, 0)), (256, 0, (0, 32, 1, 0)), (32, 0, (0, 0, 0, 1))],
        ),
        ((3, 4), (4, 1), 5, 20, [(20, 5, (4, 1))]),  # rows go on in the next one
        ((3, 3), (4, 1), 5, 20, [(5, 1, (1, 0)), (4, 1, (0, 1))]),
        ((5,), (3,), 1, 14, [(14, 1, (3,))]),  # 14 elements are no rows of 3
        ((), (), 3, 4, [(4, 3, ())]),
    ],
)
def test_overlapping_windows_have_an_axis(size, stride, offset, elements, axes):
    assert memory_axes(size, stride, offset, elements) == [MemoryAxis(*axis) for axis in axes]

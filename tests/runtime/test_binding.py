"""Shapes, types and strides that results have in tensors."""

from __future__ import annotations

from itertools import permutations

import pytest
import torch

from daceopt.runtime.binding import Output
from daceopt.runtime.strides import in_order, row_major

ORDERS = [(), *permutations(range(3))]


@pytest.mark.parametrize("shape", [(2, 3, 4), (2, 1, 4), (3, 0, 2), (1, 1, 1)])
@pytest.mark.parametrize("order", ORDERS, ids=str)
@pytest.mark.parametrize("is_complex", [False, True])
def test_strides_are_those_of_rows_whose_axes_are_reordered(
    shape: tuple[int, ...], order: tuple[int, ...], is_complex: bool
) -> None:
    output = Output(order, False, complex=is_complex)
    found, dtype, strides = output.form((*shape, 2) if is_complex else shape, torch.float32)
    expected = torch.empty(shape) if not order else torch.empty(shape).permute(in_order(range(3), order))
    assert dtype is (torch.complex64 if is_complex else torch.float32) and found == expected.shape
    assert (row_major(found) if strides is None else strides) == expected.stride()
    assert (strides is None) == (order in ((), (0, 1, 2)))


def test_strides_that_are_said_by_numbers_and_by_axes() -> None:
    for extents, strides in (((1, 4, 5), (20, 5, 1)), ((1, 4, 0), (4, 1, 1)), ((1, 0, 5), (5, 5, 1))):
        assert Output((0, 1, 2), False, layout=([1, 2], [2], 1)).form(extents, torch.int8) == (
            extents,
            torch.int8,
            strides,
        )
    assert Output((2, 0, 1), False, layout=(7, (0,), ())).form((5, 1, 4), torch.int8)[1:] == (torch.int8, (7, 1, 1))

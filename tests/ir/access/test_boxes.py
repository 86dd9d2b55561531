"""Intervals and boxes: what accesses reach, at borders and with open sizes."""

from __future__ import annotations

import pytest
import sympy

from daceopt.errors import IllegalSchedule
from daceopt.ir.access.boxes import Box, Interval, cut, hull, iterations, move_inside, reach_of
from daceopt.ir.kernel.kernel import Access, Stage
from daceopt.ir.scalar.sizes import ALL_SIZES
from daceopt.ir.scalar.symbols import param, size

T, J, K = (param(k) for k in range(3))
N = size("n")
FIVE = ALL_SIZES.inside({T: 5})


def test_what_an_access_reaches() -> None:
    ranges = {J: Interval(4 * T, 4, 4), K: Interval.whole(3)}
    assert reach_of(Access("a", (2 * J + K, 7 - J, T)), ranges) == Box(
        [Interval(8 * T, 9, 9), Interval(4 - 4 * T, 4, 4), Interval(T, 1, 1)]
    )


@pytest.mark.parametrize("value", [None, J * K, sympy.floor(J / 2), N * J])
def test_other_indices_have_no_interval(value: object) -> None:
    with pytest.raises(IllegalSchedule, match="a has the index .*; expected a sum of loops"):
        reach_of(Access("a", (value,)), {J: Interval.whole(4), K: Interval.whole(4)})


def test_hulls() -> None:
    assert hull([Interval(T + 1, 2, 2), Interval(T - 1, 1, 1)], 20, "a") == Interval(T - 1, 4, 4)
    assert hull([Interval(T, N, N), Interval(T, N + 2, N + 2)], 20, "a") == Interval(T, N + 2, N + 2)
    assert hull([Interval(T, 2, 2), Interval.whole(N)], N, "a") == Interval.whole(N)
    with pytest.raises(IllegalSchedule, match="a has 1 from i0 on and 1 from 9 - i0 on, at no fixed distance"):
        hull([Interval(T, 1, 1), Interval(9 - T, 1, 1)], 10, "a")
    with pytest.raises(IllegalSchedule, match="a box of 3 or n elements"):
        hull([Interval(T, 3, 3), Interval(T, N, N)], 10, "a")


def test_boxes_are_cut_where_an_array_may_end() -> None:
    assert cut(Interval(4 * T, 4, 4), 20, FIVE).rest is None
    assert cut(Interval(4 * T, 4, 4), 18, FIVE).rest == 18 - 4 * T
    with pytest.raises(IllegalSchedule, match="begins at i0 - 1, which may be before the array"):
        cut(Interval(T - 1, 3, 3), 18, FIVE)


def test_boxes_are_moved_inside() -> None:
    assert move_inside(Interval(4 * T, 4, 4), 20, FIVE) == Interval(4 * T, 4, 4)
    assert move_inside(Interval(4 * T - 1, 6, 6), 20, FIVE) == Interval(sympy.Max(0, sympy.Min(14, 4 * T - 1)), 6, 6)
    assert move_inside(Interval(T, 6, 6), 5, FIVE) == Interval.whole(5)
    assert move_inside(Interval(T, 2, 2), N, FIVE).bound == sympy.Min(2, N)
    with pytest.raises(IllegalSchedule, match="a box of n places of 20: which is more is not known"):
        move_inside(Interval(T, N, N), 20, FIVE)


def test_iterations_that_write_a_box() -> None:
    box = Box([Interval(T, 4, 4)])

    def write(value: object) -> Stage:
        return Stage((J, K), {}, {"o": Access("a", (value,), "sum")}, ())

    assert iterations(write(J + 2), {J: 9, K: 5}, {"a": box}) == {J: Interval(T - 2, 4, 4), K: Interval.whole(5)}
    with pytest.raises(IllegalSchedule, match="a is written at 2.i1; expected a parameter and a number"):
        iterations(write(2 * J), {J: 9, K: 5}, {"a": box})

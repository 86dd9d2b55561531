"""The longest stretch of a sequence that repeats."""

from __future__ import annotations

import pytest

from daceopt.layers.periods import Period, longest_period


@pytest.mark.parametrize(
    ("keys", "windows", "expected"),
    [
        ([7, *[1, 2, 3] * 4, 9], 4, Period(1, 3, 9)),
        ([*[1, 2, 3] * 4, 1, 2], 4, Period(0, 3, 11)),  # a part of a fifth time
        ([1, 1, 1, 1, *[2, 3] * 5], 3, Period(4, 2, 8)),
        ([5, 5, 5, 5], 4, Period(0, 1, 3)),
        ([1, 2, 3] * 3, 4, None),
        ([1, 2, 3, 4], 2, None),
        ([], 2, None),
    ],
)
def test_the_longest_stretch_of_the_shortest_period(keys: list[int], windows: int, expected: Period | None) -> None:
    assert longest_period(keys, windows) == expected


def test_windows_and_what_is_behind_an_element() -> None:
    period = Period(1, 3, 10)
    assert (period.windows, period.end, list(period.window(1))) == (4, 14, [4, 5, 6])
    assert [period.has(k) for k in (0, 1, 13, 14)] == [False, True, True, False]
    assert period.behind(2) == Period(3, 3, 8)

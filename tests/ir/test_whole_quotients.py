"""Sizes divided and rounded down, as quotient and rest."""

from __future__ import annotations

import pytest
import sympy

from daceopt.ir.parts import surely
from daceopt.ir.symbols import size
from daceopt.ir.whole_quotients import without_floors

N = size("n")
COUNT = sympy.floor(N / 4)


@pytest.mark.parametrize(
    ("expr", "holds"),
    [
        (N - 4 * COUNT, True),
        (4 * COUNT - N, False),
        (COUNT - 1, False),
        (N * N - 16 * COUNT**2, True),
        (N - 5 * COUNT, False),
        (N - 4 * COUNT - 1, False),
        (N - 4 * sympy.floor(N / 4) - 3 * sympy.floor(N / 3), False),  # two divisors: nothing is said
    ],
)
def test_what_surely_holds(expr: sympy.Expr, holds: bool) -> None:
    assert surely(expr) is holds
    if holds:
        assert all(expr.subs(N, n) >= 0 for n in range(20))


def test_a_positive_quotient() -> None:
    least = without_floors(N - 4, [COUNT])
    assert all(c >= 0 for c in sympy.Poly(least, *least.free_symbols).coeffs())
    assert without_floors(N - 4) == N - 4
    assert without_floors(7) == 7

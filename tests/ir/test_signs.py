"""What is known about the signs of sizes."""

from __future__ import annotations

from typing import Any

import pytest
import sympy

from daceopt.ir.signs import surely, surely_in
from daceopt.ir.symbols import param, size

M, N = size("m"), size("n")
P = param(0)


@pytest.mark.parametrize(
    ("expr", "holds"),
    [
        (sympy.S.Zero, True),
        (sympy.Integer(-1), False),
        (N, True),
        (N - 1, False),
        (M + N * N, True),
        (N - 8 * sympy.floor(N / 8), True),
        (8 * sympy.floor((N + 7) / 8) - N, True),
        (8 * sympy.floor(N / 8) - N, False),
        (N - sympy.Min(M, N), True),
        (sympy.Max(N - 3, 0), True),
        (N * sympy.floor((M - 5) / 8), False),  # below 0 where m < 5
        (M * N - N, False),
        (M * M - 2 * M * N + N * N, False),  # true, but not affine: nobody knows
        (sympy.floor(M * N / 3), True),
    ],
)
def test_signs(expr: Any, holds: bool) -> None:
    assert surely(expr) is holds


@pytest.mark.parametrize(
    ("expr", "extent", "holds"),
    [
        (N - 1 - P, N, True),
        (N - P, N + 1, True),
        (N - 1 - P, N + 1, False),
        (N - 32 * P - 32, sympy.floor(N / 32), True),
        (N - 32 * P - 32, sympy.floor((N + 31) / 32), False),
        (N - 32 * P - 32, sympy.Max(sympy.floor((N + 31) / 32) - 1, 0), True),
        (-P, sympy.Integer(0), True),  # there is no iteration
    ],
)
def test_signs_in_loops(expr: Any, extent: Any, holds: bool) -> None:
    assert surely_in(expr, {P: extent}) is holds

"""Dimension expressions: integer arithmetic is read, everything else stays one opaque symbol."""

from __future__ import annotations

from typing import Any

import dace
import pytest
import sympy

from daceopt.ir.scalar.dims import HINT, hint
from daceopt.ir.scalar.extents import parse
from daceopt.ir.scalar.symbols import size


def symbol(name: str) -> Any:
    return dace.symbolic.symbol(name, dace.int64)


N, M = symbol("n"), symbol("m")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("3", 3),
        ("n", N),
        ("2*n + 1", 2 * N + 1),
        ("-n + m", M - N),
        ("(n + 1)*(n - 1)", (N + 1) * (N - 1)),
        ("n**2", N**2),
        ("n//2", sympy.floor(N / 2)),
        ("7 // 2", 3),
        ("-7 // 2", -4),
    ],
)
def test_arithmetic(text: str, expected: Any) -> None:
    assert sympy.expand(parse(text, symbol) - expected) == 0


@pytest.mark.parametrize(
    "text",
    [
        *("__import__('os').system('true')", "n.real", "f(n)", "n if n else 1", "1 << 9", "n**m", "2**99", "n**9"),
        *("", "n +", "1.5*n", "True", "'n'", "n // 0", "n @ n", "+".join("n" * 200)),
    ],
)
def test_anything_else_is_opaque(text: str) -> None:
    asked: list[str] = []

    def opaque(name: str) -> Any:
        asked.append(name)
        return symbol(f"s{len(asked)}")

    assert parse(text, opaque).is_Symbol
    assert asked[-1] == text


def test_a_size_counts_as_a_number_where_a_choice_needs_one() -> None:
    n, m = size("n"), size("m")
    assert hint(5) == 5
    assert hint(n) == HINT
    assert hint(2 * n + 1, {"n": 3}) == 7
    assert hint(sympy.floor(n / 2) * m, {"n": 9}) == 4 * HINT

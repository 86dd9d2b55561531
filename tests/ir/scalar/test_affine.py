"""Affine forms: what they say, and that they say the same as the expression."""

from __future__ import annotations

from typing import Any

import pytest
import sympy
from hypothesis import given
from hypothesis import strategies as st

from daceopt.ir.scalar.affine import affine, quotient, same
from daceopt.ir.scalar.functions import pymod
from daceopt.ir.scalar.symbols import Counter, Parameter, param, size

P, Q, N = param(0), param(1), size("n")


def test_parameters_are_terms_and_everything_else_is_a_size() -> None:
    t = Counter("t")
    form = affine(3 * P - N * Q + t + N**2 - 4)
    assert form.factors == {P: 3, Q: -N} and form.constant == t + N**2 - 4 and form.is_exact and not form.is_integral
    assert affine(size("i0") + 1).factors == {}


def test_chosen_symbols_are_terms() -> None:
    form = affine(3 * P + 2 * N, [N])
    assert form.factors == {N: 2} and form.constant == 3 * P
    assert affine(P, [Q]).constant == P and affine(7).constant == 7 and affine(P).single() == (P, 1)


@pytest.mark.parametrize("part", [P * Q, sympy.floor(P / 2), pymod(P, 4), sympy.Min(P, Q), P**2, N / (P + 1)])
def test_what_is_not_affine_is_opaque(part: Any) -> None:
    form = affine(2 * Q + part + 1)
    assert form.opaque == part and not form.is_exact and form.constant == 1 and form.factors == {Q: 2}


def test_factors_that_cancel() -> None:
    assert affine(P * (N + 1) - P * N).factors == {P: 1}
    assert affine((P + N) ** 2 - P**2 - 2 * P * N).factors == {}


numbers = st.integers(-5, 5)


@given(st.lists(st.tuples(numbers, numbers, numbers), min_size=1, max_size=3), numbers, numbers, numbers)
def test_the_form_is_the_expression(parts: list, i: int, j: int, n: int) -> None:
    expr = sympy.Add(*((a * P + b * Q + c) * (N + k) for k, (a, b, c) in enumerate(parts)))
    form = affine(expr)
    again = sum((p * f for p, f in form.terms), sympy.S.Zero) + form.constant
    at = {P: i, Q: j, N: n}
    assert form.is_exact and again.subs(at) == sympy.sympify(expr).subs(at)
    assert not any(isinstance(s, Parameter) for f in form.factors.values() for s in sympy.sympify(f).free_symbols)


def test_sizes_that_are_the_same_number() -> None:
    assert same(4, 4) and same(N * (N + 1), N**2 + N) and same(sympy.Integer(3), 3)
    assert not same(4, 5) and not same(N, 4)


def test_quotients_by_zero_and_of_fractions() -> None:
    assert (
        quotient(6, 0) is None
        and quotient(N, 0) is None
        and quotient(N / 2, 1) is None
        and quotient(2 * N**2 + N, N) == 2 * N + 1
    )

"""Formulas about sizes come to an end."""

from __future__ import annotations

import itertools

import pytest
import sympy

from daceopt.capture.torch.formulas import clauses, normal_form

SYMBOLS = sympy.symbols("a:8", integer=True)
LEAVES = [s > 1 for s in SYMBOLS]


@pytest.mark.parametrize("truth", [True, False])
def test_the_count_bounds_the_normal_form(truth: bool) -> None:
    a, b, c, d, *_ = LEAVES
    for outer, inner in itertools.product((sympy.And, sympy.Or), repeat=2):
        for formula in (outer(inner(a, b), inner(c, d)), outer(a, sympy.Not(inner(b, c), evaluate=False), d)):
            form = sympy.to_cnf(formula if truth else sympy.Not(formula))
            count = len(form.args) if isinstance(form, sympy.And) else 1
            assert count <= clauses(formula, truth)


def test_a_formula_of_many_clauses_stays_as_it_is() -> None:
    pairs = [sympy.And(s > n, s < n + 5, sympy.Ne(s, n + 2)) for n, s in enumerate(SYMBOLS)]
    large = sympy.Or(*pairs)
    assert clauses(large, True) == 3**8 and normal_form(sympy.to_cnf, large) is large
    assert isinstance(normal_form(sympy.to_cnf, sympy.Or(*pairs[:2])), sympy.And)

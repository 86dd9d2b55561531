"""Functions that share an exponential; accuracy is tested with the printer."""

from __future__ import annotations

import dace
import sympy

from daceopt.codegen.scalar.algebra import simplify
from daceopt.ir.kernel.tasklet import Assignment
from daceopt.ir.scalar import scalar

X, Y = scalar.symbol("x", dace.float64), scalar.symbol("y", dace.float64)


def _simplified(expr: sympy.Expr) -> tuple[Assignment, ...]:
    return tuple(simplify([Assignment(Y, expr, dace.float64)], {X: dace.float64}))


def test_an_exponential_is_shared() -> None:
    assert [a.dtype for a in _simplified(scalar.log1p(sympy.exp(X)) + scalar.sigmoid(X))] == [dace.float64] * 3


def test_functions_of_numbers_stay_in_the_type_of_their_context() -> None:
    number = scalar.log1p(sympy.exp(-scalar.absolute(sympy.S.Zero)))
    (only,) = _simplified(number + X)
    assert only.expr == number + X

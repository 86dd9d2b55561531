"""What is proved about sizes."""

from __future__ import annotations

from typing import Any

import dace
import pytest
import sympy
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from daceopt.ir.graph.graph import Graph
from daceopt.ir.scalar import functions
from daceopt.ir.scalar.functions import idiv, pymod
from daceopt.ir.scalar.size_examples import value_of
from daceopt.ir.scalar.sizes import ALL_SIZES, Sizes
from daceopt.ir.scalar.symbols import param, size

L, M, N = size("l"), size("m"), size("n")
P, Q = param(0), param(1)
COUNT = sympy.floor(N / 4)


@pytest.mark.parametrize(
    ("expr", "holds"),
    [
        (0, True),
        (sympy.Integer(-1), False),
        (sympy.Rational(1, 2), True),
        (N, True),
        (N - 1, False),
        (M + N * N, True),
        ((M - 1) ** 2 + 2 * M, True),
        (N - 8 * sympy.floor(N / 8), True),
        (8 * sympy.floor((N + 7) / 8) - N, True),
        (8 * sympy.floor(N / 8) - N, False),
        (sympy.ceiling(N / 2) - sympy.floor(N / 2), True),
        (N - sympy.Min(M, N), True),
        (sympy.Max(N - 3, 0), True),
        (N * sympy.floor((M - 5) / 8), False),  # below 0 where m < 5
        (M * N - N, False),
        (M * M - 2 * M * N + N * N, False),  # true, but not affine: nobody knows
        (sympy.floor(M * N / 3), True),
        (N - 4 * COUNT, True),
        (4 * COUNT - N, False),
        (COUNT - 1, False),
        (N * N - 16 * COUNT**2, True),
        (M * (N - 4 * COUNT), True),
        (N - 5 * COUNT, False),
        (M + sympy.floor(-N / 2) + 1, False),
        (M - sympy.floor(-N / 2), True),
        (-2 * sympy.floor(-N / 2) - N, True),
        (N - 4 * COUNT - 1, False),
        (N - 4 * sympy.floor(N / 4) - 3 * sympy.floor(N / 3), False),
        (sympy.Symbol("x", integer=True), False),  # a value in scalar code
        (sympy.Symbol("x", real=True) ** 2, True),
        (sympy.sqrt(2) - 1, True),
        (functions.cast(functions.cast(sympy.S.Zero, dace.int64), dace.int64), True),
        (functions.cast(sympy.Integer(-3), dace.int32) + 2, False),
        (functions.cast(sympy.Integer(2**40), dace.int32), False),  # another number: nobody asks for it
        (functions.select(functions.lt(0, 1), 1, 2), False),  # not computed here
    ],
)
def test_what_is_never_negative(expr: Any, holds: bool) -> None:
    assert ALL_SIZES.is_natural(expr) is holds


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
        (M * N - 1 - M * P, N, False),  # where m is 0
        (M * N - M * P, N, True),
        (N - 1, N, True),
        (1 - pymod(P, 2), 8, True),
        (-idiv(P - 5, 2) - 1, 5, False),  # -1 // 2 is 0 in scalar code
        (-idiv(P - 5, 2), 5, True),
    ],
)
def test_what_is_never_negative_in_loops(expr: Any, extent: Any, holds: bool) -> None:
    assert ALL_SIZES.inside({P: extent}).is_natural(expr) is holds


@pytest.mark.parametrize(
    ("facts", "expr", "holds"),
    [
        ([N - 2], N - 2, True),
        ([N - 2], N - 3, False),
        ([N - 2, N - 5], N - 4, True),
        ([2 * N - 5], N - 3, True),
        ([2 * N - 5], N - 4, False),
        ([M * N - 1], M + N - 2, True),
        ([M - 1, N - 1], M * N - M - N + 1, True),
        ([N - M, M - L], N - L, True),
        ([N - M], 3 * N - 3 * M, True),
        ([COUNT - 1], N - 4, True),
        ([COUNT - 1], M * N - 4 * M, True),
        ([COUNT - 1], N - 5, False),
        ([COUNT - 1, N - 1, M - 1], N * N - 4 * N * COUNT, True),
        ([COUNT - 1, N - 1, M - 1], M * N - 4 * M * COUNT + M - 1, True),
        ([N - M - 1], N - 1, True),
        ([M - N], N - M, False),
    ],
)
def test_facts(facts: list[Any], expr: Any, holds: bool) -> None:
    assert ALL_SIZES.knowing(facts).is_natural(expr) is holds


def test_loops_inside_of_others() -> None:
    inside = ALL_SIZES.inside({P: N, Q: P + 1})
    assert inside.is_natural(N - 1 - Q)
    assert inside.is_natural(P - Q)
    assert not inside.is_natural(Q - P)


def test_signs_and_positive_expressions() -> None:
    assert ALL_SIZES.signs(N) == {0, 1}
    assert ALL_SIZES.signs(N + 1) == {1}
    assert ALL_SIZES.signs(-N) == {-1, 0}
    assert ALL_SIZES.signs(-N / 2 - 1) == {-1}
    assert ALL_SIZES.signs(N - 1) == {-1, 0, 1}
    assert ALL_SIZES.signs(sympy.S.Zero) == ALL_SIZES.signs(0) == {0}
    assert ALL_SIZES.is_positive(N / 2 + 1)
    assert not ALL_SIZES.is_positive(N / 2)
    assert not ALL_SIZES.is_positive(0)
    assert ALL_SIZES.knowing([N - 3]).is_positive(N - 2)


def test_what_a_graph_is_for_is_known() -> None:
    graph = Graph("assuming")
    assert graph.sizes == ALL_SIZES
    graph.assumptions.append(N - 3)
    assert graph.sizes.is_natural(N - 3)
    assert graph.sizes.knowing([M, N - 3, sympy.Integer(2)]) == Sizes((N - 3, M))


# -------------------------------------------------------------------- properties

_NAMES = st.sampled_from([L, M, N, P, Q])
_NUMBERS = st.integers(-6, 6).map(sympy.Integer)


def _more(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    divisors = st.integers(1, 5)
    return st.one_of(
        st.builds(lambda a, b: a + b, inner, inner),
        st.builds(lambda a, b: a - b, inner, inner),
        st.builds(lambda a, b: a * b, inner, inner),
        st.builds(lambda a, k: sympy.floor(a / k), inner, divisors),
        st.builds(lambda a, k: sympy.floor(-a / k), inner, divisors),
        st.builds(lambda a, k: sympy.ceiling(a / k), inner, divisors),
        st.builds(idiv, inner, divisors),
        st.builds(pymod, inner, divisors),
        st.builds(lambda a, b: sympy.Min(a, b, evaluate=False), inner, inner),
        st.builds(lambda a, b: sympy.Max(a, b, evaluate=False), inner, inner),
    )


EXPRESSIONS = st.recursive(_NAMES | _NUMBERS, _more, max_leaves=6)


@settings(max_examples=400, deadline=None, derandomize=True)
@given(
    EXPRESSIONS,
    st.lists(EXPRESSIONS, max_size=2),
    st.lists(st.integers(0, 9), min_size=5, max_size=5),
    st.booleans(),
)
def test_what_is_proved_holds(expr: Any, facts: list[Any], numbers: list[int], loops: bool) -> None:
    """For random sizes for which the facts hold, in a random iteration of two loops."""
    known = ALL_SIZES.inside({P: N, Q: M + 1} if loops else {}).knowing(facts)
    values = dict(zip([L, M, N, P, Q], numbers))
    assume(all(value_of(f, values, -1) >= 0 for f in facts))
    assume(not loops or (values[P] < values[N] and values[Q] <= values[M]))
    found = value_of(expr, values, None)
    assert found is not None
    if known.is_natural(expr):
        assert found >= 0
    if known.is_positive(expr):
        assert found > 0
    assert (found > 0) - (found < 0) in known.signs(expr)

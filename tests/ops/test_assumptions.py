"""Relations over sizes that a graph may take for granted."""

from __future__ import annotations

import dace
import pytest
import sympy

from daceopt.ir.graph.graph import Graph
from daceopt.ops.core.assumptions import assume

N, M = (dace.symbolic.symbol(name, dace.int64) for name in ("n", "m"))


@pytest.mark.parametrize(
    ("expression", "recorded"),
    [
        (N + 2, []),
        (sympy.Max(N - 3, 0), []),
        (8 - N, [8 - N]),
        (N * M - 4, [N * M - 4]),
        (N - 2 * sympy.floor((N + 1) / 2) + 1, []),
        (sympy.floor(N / 2) - 3, [N - 7]),
        (9 - sympy.floor(N / 2), [18 - N]),
    ],
)
def test_what_is_recorded(expression, recorded) -> None:
    graph = Graph("g")
    assert assume(graph, expression)
    assert [sympy.expand(a - b) for a, b in zip(graph.assumptions, recorded, strict=True)] == [0] * len(recorded)
    assert graph.copy().assumptions == graph.assumptions


@pytest.mark.parametrize("expression", [-1, -N - 1, 4 - sympy.Min(N, M), sympy.floor(N / M) - 2])
def test_what_never_holds_or_cannot_be_checked(expression) -> None:
    graph = Graph("g")
    assert not assume(graph, expression)
    assert not graph.assumptions


def test_what_follows_is_not_recorded_again() -> None:
    graph = Graph("g")
    for bound in (8, 8, 10):
        assert assume(graph, bound - N)
    assert graph.assumptions == [8 - N]

"""Canonical forms of reductions: those of APOLLO's Listing 4; what lies innermost in memory decides."""

from __future__ import annotations

from typing import Any

import dace
import pytest
import sympy

from daceopt.ir.access.reduction_form import ReductionForm, forms
from daceopt.ir.fusion.fusion import expand_locals
from daceopt.ir.graph.graph import Graph
from daceopt.ir.kernel.kernel import Kernel
from daceopt.transformations.local.map_fusion import MapFusion
from tests.transformations.lowered import finish, start

M, N, P, Q = (dace.symbolic.symbol(s, dace.int64) for s in "mnpq")


def reduced(shape: tuple, axes: tuple[int, ...], order: tuple[int, ...] | None = None) -> tuple[Graph, Kernel]:
    graph, b, (x,) = start(shape)
    finish(graph, b.reduce("sum", None, b.transpose(x, order) if order else x, axes=axes))
    return graph, graph.kernels()[0].kernel


def test_listing_3_has_the_form_of_listing_4() -> None:
    """``b(i, k) += a(i, j, k, l)``: the loops over i and k are kept, those over j and l reduced."""
    graph, kernel = reduced((M, N, P, Q), (1, 3))
    (form,) = forms(graph, kernel)
    assert str(form) == "y-reduce: for x < m*p: for y < n*q"
    assert form == ReductionForm("y-reduce", (M, P), (N, Q))


@pytest.mark.parametrize(
    ("expected", "shape", "axes", "order"),
    [
        ("all-reduce: for y < 24", (4, 6), (0, 1), None),
        ("y-reduce: for x < 4: for y < 6", (4, 6), (1,), None),
        ("x-reduce: for y < 4: for x < 6", (4, 6), (0,), None),
        ("y-reduce: for x < 4: for y < 6", (4, 6), (0,), (1, 0)),  # the rows of a transposed array
        ("y-reduce: for x < 3: for y < 40", (2, 3, 4, 5), (0, 2, 3), None),  # batch normalization
        ("x-reduce: for y < 40: for x < 3", (2, 4, 5, 3), (0, 1, 2), None),  # the same, channels last
        ("all-reduce: for y < 6", (1, 6), (1,), None),
        ("y-reduce: for x < m: for y < 6", (M, 6), (1,), None),
    ],
)  # fmt: skip
def test_forms(expected: str, shape: tuple, axes: tuple[int, ...], order: Any) -> None:
    graph, kernel = reduced(shape, axes, order)
    assert [str(form) for form in forms(graph, kernel)] == [expected]


def test_forms_match_where_both_loops_are_as_long() -> None:
    rows = ReductionForm("y-reduce", (2, 3), (4,))
    assert rows.matches(ReductionForm("y-reduce", (6,), (2, 2)))
    assert not rows.matches(ReductionForm("x-reduce", (6,), (4,)))
    assert not rows.matches(ReductionForm("y-reduce", (6,), (8,)))


def test_fused_kernels_have_the_forms_of_all_their_reductions() -> None:
    graph, b, (x,) = start((4, 6))
    top = b.reduce("max", None, x, axes=[1], keepdims=True)
    e = b.elementwise(lambda v, m: sympy.exp(v - m), x, top)
    finish(graph, e, b.reduce("sum", None, e, axes=[1]))
    MapFusion().run(graph)
    (kernel,) = (expand_locals(k.kernel) for k in graph.kernels())
    assert [str(form) for form in forms(graph, kernel)] == ["y-reduce: for x < 4: for y < 6"]
    graph, b, (x,) = start((4, 6))
    finish(graph, b.elementwise(sympy.tanh, x))
    assert forms(graph, graph.kernels()[0].kernel) == []

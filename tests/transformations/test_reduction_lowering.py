"""Reduction lowering: an accumulator per kept element."""

from __future__ import annotations

import pytest

from daceopt.ir.text.render import render
from daceopt.transformations.local.reduction_lowering import ReductionLowering
from tests.transformations.lowered import apply, finish, kernels, misses, size_symbol, start


def test_a_sum_over_rows() -> None:
    graph, b, (x,) = start((4, 6))
    apply(ReductionLowering(), finish(graph, b.reduce("sum", None, x, axes=[1])), special=True)
    assert (
        render(graph)
        == """graph test(x_1: float32[4, 6]) -> k_2
  k_2: float32[4] = kernel k outer i0
    local k_2_acc: float32[1]
    s0(i0 < 4, i1 < 6):
      in0 <- x_1[i0, i1]
      out0: float32 = in0
      out0 -> k_2_acc[0] (sum)
    s1(i0 < 4):
      in_out0 <- k_2_acc[0]
      out0: float32 = in_out0
      out0 -> k_2[i0]
"""
    )


@pytest.mark.share(2)
@pytest.mark.parametrize("kind", ["sum", "prod", "max", "min"])
@pytest.mark.parametrize("axes", [[2], [1, 2], [0, 2]])
@pytest.mark.parametrize("keepdims", [False, True])
def test_kinds_and_axes(kind: str, axes: list[int], keepdims: bool) -> None:
    graph, b, (x,) = start((size_symbol(), 4, 6))
    outcome = apply(
        ReductionLowering(), finish(graph, b.reduce(kind, lambda v: 2 * v, x, axes=axes, keepdims=keepdims)), True
    )
    assert len(outcome.sites) == 1
    assert apply(ReductionLowering(), graph).sites == []


def test_several_results_over_the_same_dimensions() -> None:
    graph, b, (x,) = start((4, 6))
    total, top = graph.add_array("total", (4,), graph.dtype(x)), graph.add_array("top", (4,), graph.dtype(x))
    writes = {"s": (total, lambda i, j: (i,), "sum"), "m": (top, lambda i, j: (i,), "max")}
    b.map((4, 6), {"v": (x, lambda *i: i)}, writes, lambda i, v: {"s": v, "m": v})
    apply(ReductionLowering(), finish(graph, total, top), special=True)
    (kernel,) = kernels(graph)
    assert len(kernel.stages) == 2 and set(kernel.locals) == {f"{total}_acc", f"{top}_acc"}


def test_a_kept_dimension_that_is_innermost() -> None:
    graph, b, (x,) = start((4, 6))
    outcome = apply(ReductionLowering(), finish(graph, b.reduce("sum", None, x, axes=[0])))
    assert "the kept dimension is innermost in memory" in misses(outcome)


def test_what_is_no_reduction_over_some_dimensions() -> None:
    graph, b, (x,) = start((4, 6))
    finish(graph, b.elementwise(lambda v: v + 1, x), b.reduce("sum", None, x, axes=[0, 1]))
    assert apply(ReductionLowering(), graph).sites == []


def test_results_over_different_dimensions_stay() -> None:
    graph, b, (x,) = start((4, 6))
    rows, columns = graph.add_array("rows", (4,), graph.dtype(x)), graph.add_array("columns", (6,), graph.dtype(x))
    writes = {"r": (rows, lambda i, j: (i,), "sum"), "c": (columns, lambda i, j: (j,), "sum")}
    b.map((4, 6), {"v": (x, lambda *i: i)}, writes, lambda i, v: {"r": v, "c": v})
    assert apply(ReductionLowering(), finish(graph, rows, columns)).sites == []

"""Tasklet fusion: chains of point-wise kernels become one tasklet, and nothing else does."""

from __future__ import annotations

import dace
import numpy as np
import sympy

from daceopt.ir.scalar import scalar
from daceopt.ir.text.render import render
from daceopt.transformations.local.tasklet_fusion import TaskletFusion
from tests.transformations.lowered import F, apply, finish, kernels, start


def test_a_chain() -> None:
    graph, b, (x,) = start((4, 6))
    top = b.elementwise(sympy.tanh, x)
    apply(TaskletFusion(), finish(graph, b.elementwise(lambda u, v: u * v, top, x)), special=True)
    assert (
        render(graph)
        == """graph test(x_1: float32[4, 6]) -> k_3
  k_3: float32[4, 6] = kernel k
    s0(i0 < 4, i1 < 6):
      in0 <- x_1[i0, i1]
      t0: float32 = tanh(in0)
      out0: float32 = in0*t0
      out0 -> k_3[i0, i1]
"""
    )


def test_types_of_intermediate_results_are_kept() -> None:
    """A truncation in the middle of a chain still truncates."""
    graph, b, (x,) = start((4, 6))
    whole = b.elementwise(lambda v: 3 * v, x, dtype=dace.int32)
    apply(TaskletFusion(), finish(graph, b.elementwise(lambda v: v + sympy.Rational(1, 2), whole, dtype=F)))
    (kernel,) = kernels(graph)
    assert [a.dtype for a in kernel.stages[0].assignments] == [dace.int32, F]


def test_into_a_reduction_but_not_after_it() -> None:
    graph, b, (x,) = start((4, 6))
    total = b.reduce("sum", None, b.elementwise(sympy.exp, x), axes=[1], keepdims=True)
    apply(TaskletFusion(), finish(graph, b.elementwise(sympy.log, total)))
    assert len(graph.kernels()) == 2


def test_permuted_spaces() -> None:
    graph, b, (x,) = start((4, 6))
    turned = b.transpose(b.elementwise(sympy.exp, x), [1, 0])
    outcome = apply(TaskletFusion(), finish(graph, b.elementwise(lambda v: v + 1, turned)))
    assert len(outcome.sites) == 1


def stays(graph: object) -> None:
    assert apply(TaskletFusion(), graph).sites == []  # type: ignore[arg-type]


def test_two_readers() -> None:
    graph, b, (x,) = start((4, 6))
    top = b.elementwise(sympy.exp, x)
    stays(finish(graph, b.elementwise(lambda v: v + 1, top), b.elementwise(lambda v: v * 2, top)))


def test_outputs_and_saved_arrays() -> None:
    for keep in ("outputs", "saved"):
        graph, b, (x,) = start((4, 6))
        top = b.elementwise(sympy.exp, x)
        finish(graph, b.elementwise(lambda v: v + 1, top))
        getattr(graph, keep).append(top)
        stays(graph)


def test_broadcast_producers() -> None:
    """A row computed once is not computed again for every element."""
    graph, b, (x, row) = start((4, 6), (6,))
    stays(finish(graph, b.elementwise(lambda u, v: u + v, x, b.elementwise(sympy.exp, row))))


def test_other_elements() -> None:
    graph, b, (x,) = start((4, 4))
    top = b.elementwise(sympy.exp, x)
    stays(finish(graph, b.elementwise(lambda u, v: u + v, top, b.transpose(top, [1, 0]))))
    graph, b, (x,) = start((4, 4))
    flipped = b.slice(b.elementwise(sympy.exp, x), [3], [-1], [-1], [0])
    stays(finish(graph, b.elementwise(lambda v: v + 1, flipped)))


def test_run_time_indices() -> None:
    graph, b, (x,) = start((4,))
    top = b.elementwise(sympy.exp, x)
    rows = graph.add_constant("rows", np.array([3, 0, 1, 1]))
    out = graph.add_array("out", (4,), F)
    reads = {"a": (top, lambda i: (None,)), "r": (rows, lambda i: (i,)), "v": (x, lambda i: (i,))}
    b.map((4,), reads, {"out": (out, lambda i: (i,))}, lambda i, a, r, v: scalar.load(a, r) + v)
    stays(finish(graph, out))


def test_the_limit_of_assignments() -> None:
    graph, b, (x,) = start((4, 6))
    finish(graph, b.elementwise(sympy.exp, b.elementwise(sympy.tanh, b.elementwise(sympy.sin, x))))
    apply(TaskletFusion(max_assignments=2), graph)
    assert sorted(len(k.stages[0].assignments) for k in kernels(graph)) == [1, 2]


def test_long_chains_in_one_go() -> None:
    graph, b, (x,) = start((4, 6))
    y = x
    for _ in range(20):
        y = b.elementwise(lambda u, v: u + sympy.tanh(v), y, x)
    outcome = apply(TaskletFusion(), finish(graph, y))
    assert len(graph.kernels()) == 1 and len(outcome.sites) == 1

"""What is stored and what is computed again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dace
import pytest
import sympy

from daceopt.autodiff import differentiate
from daceopt.ir.graph.graph import Graph
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.scalar import scalar
from tests.autodiff.checking import Problem, check


def _products(depth: int) -> Callable[..., Any]:
    """x -> tanh(x W0) W1 ... with one weight per layer."""

    def build(b: Builder, x: str, *weights: str) -> str:
        for w in weights:
            x = str(b.elementwise(sympy.tanh, b.matmul(x, w)))
        return x

    return build


def test_a_product_is_stored_and_its_activation_is_not_stored_twice() -> None:
    build = _products(1)
    recomputed, stored = check(build, lambda x, w: (x @ w).tanh(), (3, 4), (4, 5))
    assert len(recomputed.saved) == 1 and len(stored.saved) == 1


def test_what_a_product_reads_is_stored() -> None:
    recomputed, _ = check(_products(2), lambda x, w, v: ((x @ w).tanh() @ v).tanh(), (3, 4), (4, 5), (5, 6))
    shapes = sorted(recomputed.forward.shape(n) for n in recomputed.saved)
    assert shapes == [(3, 5), (3, 6)]  # the results of tanh: its gradient needs no product


def test_a_chain_from_an_input_keeps_the_input_only() -> None:
    def build(b: Builder, x: str) -> str:
        for _ in range(6):
            x = str(b.elementwise(lambda v: sympy.sin(v) + sympy.tanh(v), b.elementwise(lambda v: 2 * v, x)))
        return x

    problem = Problem(build, [(3, 4)])
    assert problem.derive().saved == []
    assert len(problem.derive("store").saved) == 6


def test_a_residual_sum_is_stored_rather_than_both_of_its_terms() -> None:
    def build(b: Builder, x: str, w: str, v: str) -> str:
        total = b.elementwise(lambda s, t: s + t, b.matmul(x, w), b.matmul(x, v))
        return str(b.elementwise(sympy.tanh, total))

    recomputed, _ = check(build, lambda x, w, v: (x @ w + x @ v).tanh(), (3, 4), (4, 5), (4, 5))
    assert len(recomputed.saved) == 1


def test_a_random_mask_is_drawn_again() -> None:
    graph = Graph("dropout")
    b = Builder(graph)
    x = graph.add_input("x", (3, 4), dace.float32)
    out = graph.add_array("out", (3, 4), dace.float32)

    def drop(p: Any, v: Any, s: Any) -> Any:
        keep = scalar.ge(scalar.uniform(s, 5, 4 * p[0] + p[1]), 0.5)
        return scalar.select(keep, 2 * v, 0)

    reads = {"v": (x, lambda i, j: (i, j)), "s": (graph.seed(), lambda i, j: (0,))}
    b.map([3, 4], reads, {"out": (out, lambda i, j: (i, j))}, drop)
    graph.add_output(out)
    derivative = differentiate(graph, [out], [x])
    assert derivative.saved == [] and derivative.forward_inputs_needed == []
    assert derivative.backward.uses_seed


def test_stored_arrays_have_one_name_in_both_graphs() -> None:
    derivative = Problem(_products(3), [(2, 3), (3, 4), (4, 5), (5, 2)]).derive()
    assert derivative.forward.saved == derivative.backward.saved == derivative.saved
    for name in derivative.saved:
        assert name in derivative.backward.inputs and name not in derivative.forward.inputs
        assert derivative.forward.shape(name) == derivative.backward.shape(name)


def test_unknown_policy() -> None:
    problem = Problem(_products(1), [(2, 3), (3, 4)])
    with pytest.raises(ValueError, match="policy 'none' is not one of"):
        problem.derive("none")

"""Gradients of maxima, minima and products read the forward's own elements: computed again, none may be equal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dace
import numpy as np
import pytest
import sympy

from daceopt.autodiff import differentiate
from daceopt.autodiff.extremes import compared_arrays
from daceopt.ir.graph.graph import Graph
from daceopt.ir.nodes.builder import Builder
from tests.autodiff import checking

TORCH = {
    "max": lambda v: v.amax(1),
    "min": lambda v: v.amin(1),
    "prod": lambda v: v.prod(1),
}


def graph_of(build: Callable[[Builder, str], str], shape: tuple[int, ...] = (4, 6)) -> Graph:
    graph = Graph("extremes")
    x = graph.add_input("x", shape, dace.float32)
    graph.add_output(build(Builder(graph), x))
    return graph


def bend(v: Any) -> Any:
    return sympy.tanh(v * v - v)


@pytest.mark.parametrize("kind", sorted(TORCH))
def test_elements_computed_by_another_kernel_are_stored(kind: str) -> None:
    graph = graph_of(lambda b, x: b.reduce(kind, None, b.elementwise(bend, x), axes=(1,)))
    (elements,) = compared_arrays(graph)
    assert elements in differentiate(graph, graph.outputs, graph.inputs).saved


@pytest.mark.parametrize("kind", sorted(TORCH))
def test_elements_computed_on_the_way_are_stored(kind: str) -> None:
    graph = graph_of(lambda b, x: b.reduce(kind, bend, x, axes=(1,)))
    derivative = differentiate(graph, graph.outputs, graph.inputs)
    assert [n for n in derivative.saved if derivative.forward.shape(n) == (4, 6)]


def test_a_sum_stores_nothing() -> None:
    graph = graph_of(lambda b, x: b.reduce("sum", bend, x, axes=(1,)))
    assert not differentiate(graph, graph.outputs, graph.inputs).saved


def test_elements_that_are_an_input_stay_there() -> None:
    graph = graph_of(lambda b, x: b.reduce("max", None, x, axes=(1,)))
    derivative = differentiate(graph, graph.outputs, graph.inputs)
    assert derivative.saved == derivative.forward.outputs and derivative.forward_inputs_needed == graph.inputs


@pytest.mark.parametrize("kind", sorted(TORCH))
def test_against_torch(kind: str) -> None:
    def build(b: Builder, x: str, w: str) -> tuple[str, str]:
        """One kernel with a point-wise result, a sum and an extreme of the same value."""
        y, total, best = (b.graph.add_array(n, s, dace.float64) for n, s in (("y", (4, 6)), ("t", (4,)), ("m", (4,))))
        b.map(
            (4, 6),
            {"x": (x, lambda i, j: (i, j)), "w": (w, lambda i, j: (j,))},
            {
                "y": (y, lambda i, j: (i, j)),
                "t": (total, lambda i, j: (i,), "sum"),
                "m": (best, lambda i, j: (i,), kind),
            },
            lambda _, x, w: {"y": bend(x), "t": bend(x) * w, "m": bend(x) * w + x},
        )
        return b.elementwise(lambda v, s: v * s, y, b.reshape(total, (4, 1))), best

    def reference(x: Any, w: Any) -> Any:
        y = (x * x - x).tanh()
        return y * (y * w).sum(1, keepdim=True), TORCH[kind](y * w + x)

    checking.check(build, reference, (4, 6), (6,))


def test_each_reduction_reads_memory_after_the_preparation() -> None:
    graph = graph_of(lambda b, x: b.reduce("max", bend, x, axes=(1,)))
    forward = differentiate(graph, graph.outputs, graph.inputs).forward
    kernels = [e.kernel for e in forward.kernels()]
    assert [len(k.stages[0].assignments[0].expr.args) for k in kernels if k.writes()[0].wcr] == [0]
    assert np.prod(forward.shape(kernels[0].writes()[0].array)) == 24

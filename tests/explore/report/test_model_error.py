"""The error of the cost model: over which kernels, and how it is said."""

from __future__ import annotations

from types import SimpleNamespace

import dace
import pytest
import sympy

from daceopt.explore.report.collect import Direction
from daceopt.explore.report.model_error import modelled_and_measured, summary
from daceopt.ir.graph.graph import Graph
from daceopt.ir.nodes.builder import Builder


def test_the_factor_is_the_same_for_too_much_and_too_little() -> None:
    a, b = SimpleNamespace(label="a"), SimpleNamespace(label="b")
    text = summary([(a, 2e-6, 1e-6), (b, 1e-6, 8e-6)])
    assert text == "the cost model is off by a factor of 4.00 (mean of 2 kernels, 0% within 1.25), at worst 8.00 (b)"
    assert summary([]) is None


def test_kernels_that_were_measured() -> None:
    """No library calls, nothing shorter than what the clock can tell."""
    graph = Graph("test")
    x, w = graph.add_input("x", (64, 64), dace.float32), graph.add_input("w", (64, 64), dace.float32)
    b = Builder(graph)
    first, second = b.elementwise(lambda v: sympy.tanh(v), x), b.elementwise(lambda v: v + 1, w)
    product = b.matmul(first, second)
    graph.add_output(product)
    direction = Direction("forward", graph, {}, {first: 4e-6, second: 1e-8, product: 1e-3})
    ((node, model, seconds),) = modelled_and_measured([direction], {})
    assert graph.outputs_of(node) == [first] and seconds == 4e-6
    assert model == pytest.approx(20 * 64 * 64 * 1.2e-11 + 2 * 4 * 64 * 64 / 120e9 + 3e-8)

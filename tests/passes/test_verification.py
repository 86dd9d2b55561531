"""What ``verify="numerics"`` takes for rounding, where terms cancel and a result is rounding alone."""

from __future__ import annotations

from dataclasses import dataclass

import dace
import numpy as np
import pytest
import sympy

from daceopt.errors import VerificationError
from daceopt.ir.graph.graph import Graph
from daceopt.ir.interpreter.disturbance import Disturbance
from daceopt.ir.interpreter.interpret import interpret
from daceopt.ir.nodes.builder import Builder
from daceopt.passes.recipe import Recipe
from daceopt.passes.runner import Runner
from daceopt.transform import Site, Transformation


def centred(rows: int, columns: int, strides: tuple[int, int]) -> Graph:
    """The sum of what deviates from the mean: exactly zero."""
    graph = Graph("centred")
    b = Builder(graph)
    x = graph.add_input("x", (rows, columns), dace.float32)
    y = graph.add_array("y", (rows, columns), dace.float32, strides)
    b.elementwise(lambda v: sympy.tanh(v), x, out=y)
    mean = b.reduce("sum", lambda v: v / rows, y, axes=(0,), keepdims=True)
    graph.add_output(b.reduce("sum", None, b.elementwise(lambda v, m: v - m, y, mean), axes=(0,)))
    return graph


@dataclass(frozen=True)
class Shift(Transformation):
    """Replace each tanh by one that is off by ``by``.

    before:  y = tanh(x)
    after:   y = tanh(x) + by * x
    """

    level = "local"
    by: float = 0.0

    def match_at(self, graph, node):
        if isinstance(node.kernel.stages[0].assignments[0].expr, sympy.tanh):
            yield Site(graph, (node,))

    def apply(self, site):
        graph = site.graph
        (y,) = graph.outputs_of(site.nodes[0])
        graph.remove(site.nodes[0])
        Builder(graph).elementwise(lambda v: sympy.tanh(v) + sympy.Float(self.by) * v, "x_1", out=y)


@pytest.mark.parametrize("rows", [7, 1000])
def test_roundings_of_what_cancels_are_no_error(rows: int) -> None:
    for seed in range(10):
        x = np.random.default_rng(seed).standard_normal((rows, 1), dtype=np.float32)
        Runner(Recipe("r", [Shift(by=3e-8)]), "numerics", inputs={"x_1": x}).run(centred(rows, 1, (1, 1)))


@pytest.mark.parametrize("by", [3e-5, 1e-3])
def test_more_than_rounding_is_found_where_terms_cancel(by: float) -> None:
    graph = centred(1000, 1, (1, 1))
    total = Builder(graph).reduce("sum", None, graph.outputs_of(graph.nodes()[0])[0], axes=(0,))
    graph.add_output(total)
    with pytest.raises(VerificationError, match="shift"):
        Runner(Recipe("r", [Shift(by=by)]), "numerics").run(graph)


def test_sums_do_not_depend_on_how_memory_is_laid_out() -> None:
    x = np.random.default_rng(0).standard_normal((3000, 3), dtype=np.float32)
    row_major, column_major = centred(3000, 3, (3, 1)), centred(3000, 3, (1, 3000))
    found = [interpret(g, {"x_1": x})[g.outputs[0]] for g in (row_major, column_major)]
    np.testing.assert_array_equal(*found)


def test_disturbed_executions_leave_alone_what_is_only_chosen() -> None:
    graph = Graph("chosen")
    b = Builder(graph)
    x = graph.add_input("x", (100,), dace.float32)
    graph.add_output(b.elementwise(lambda v: -abs(v), x))
    graph.add_output(b.elementwise(lambda v: v * v, x))
    values = {"x_1": np.random.default_rng(0).standard_normal(100, dtype=np.float32)}
    plain, moved = interpret(graph, values), interpret(graph, values, disturbance=Disturbance(1))
    chosen, squared = graph.outputs
    np.testing.assert_array_equal(plain[chosen], moved[chosen])
    apart = np.abs(plain[squared] - moved[squared]) / plain[squared]
    assert 0 < apart.max() <= 2.0**-22

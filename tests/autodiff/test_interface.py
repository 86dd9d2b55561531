"""Outputs, inputs and errors of ``differentiate``; its cost grows linearly with the graph."""

from __future__ import annotations

from typing import Any
from unittest import mock

import dace
import numpy as np
import pytest
import sympy

from daceopt.autodiff import differentiate
from daceopt.autodiff.rules import rule_of
from daceopt.errors import Unsupported
from daceopt.ir.graph.graph import Graph
from daceopt.ir.kernel.kernel import Kernel
from daceopt.ir.kernel.kernel_node import KernelNode
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.nodes.library import HostCall
from tests.autodiff.checking import Problem, check, run


def test_an_unused_input_has_no_gradient() -> None:
    derivative = check(lambda b, x, y: b.elementwise(sympy.exp, x), lambda x, y: x.exp(), (3,), (2,))[0]
    assert list(derivative.grad_inputs.values())[1] is None


def test_an_input_returned_as_it_is() -> None:
    derivative = check(lambda b, x: (x, b.elementwise(sympy.exp, x)), lambda x: (x * 1, x.exp()), (3, 4))[0]
    assert len(derivative.grad_outputs) == 2


def test_only_an_input_returned() -> None:
    check(lambda b, x: x, lambda x: x * 1, (3, 4))


def test_an_array_returned_twice_has_one_gradient() -> None:
    problem = Problem(lambda b, x: b.elementwise(sympy.exp, x), [(3,)])
    name = problem.graph.outputs[0]
    derivative = differentiate(problem.graph, [name, name], problem.wanted)
    assert list(derivative.grad_outputs) == [name]


def test_two_inputs_may_share_one_gradient() -> None:
    derivative = check(lambda b, x, y: b.elementwise(lambda u, v: u + v, x, y), lambda x, y: x + y, (3,), (3,))[0]
    assert len(set(derivative.backward.outputs)) == len(derivative.backward.outputs)


def test_an_output_that_depends_on_no_wanted_input() -> None:
    problem = Problem(lambda b, x, y: (b.elementwise(sympy.exp, x), b.elementwise(sympy.sin, y)), [(3,), (2,)])
    derivative = differentiate(problem.graph, problem.graph.outputs, problem.wanted[:1])
    assert list(derivative.grad_outputs) == problem.graph.outputs[:1]
    assert list(derivative.grad_inputs) == problem.wanted[:1]


def test_the_graph_given_is_not_changed() -> None:
    problem = Problem(lambda b, x: b.elementwise(sympy.exp, x), [(3,)])
    before = (problem.graph.arrays(), list(problem.graph.outputs), len(problem.graph.nodes()))
    problem.derive()
    assert before == (problem.graph.arrays(), list(problem.graph.outputs), len(problem.graph.nodes()))


def test_a_node_without_a_rule_is_named() -> None:
    graph = Graph("host")
    x = graph.add_input("x", (3,), dace.float32)
    y = graph.add_array("y", (3,), dace.float32)
    graph.add_node(HostCall("mystery", inputs=["In0"], outputs=["Out0"]), {"In0": x}, {"Out0": y})
    graph.add_output(y)
    with pytest.raises(Unsupported, match="HostCall 'mystery' has no gradient rule"):
        differentiate(graph, [y], [x])


def test_names_that_the_graph_does_not_have() -> None:
    problem = Problem(lambda b, x: b.elementwise(sympy.exp, x), [(3,)])
    with pytest.raises(ValueError, match="'nowhere' is no output"):
        differentiate(problem.graph, ["nowhere"], problem.wanted)
    with pytest.raises(ValueError, match="'nowhere' is no input"):
        differentiate(problem.graph, problem.graph.outputs, ["nowhere"])


def test_symbolic_batch() -> None:
    graph = Graph("batch")
    n = dace.symbolic.symbol("s0", dace.int64, positive=True)
    x = graph.add_input("x", (n, 4), dace.float64)
    w = graph.add_input("w", (4, 3), dace.float64)
    graph.symbols["s0"] = (x, 0)
    b = Builder(graph)
    y = b.reduce("sum", sympy.tanh, b.slice(b.matmul(x, w), [1], [3], axes=[1]), axes=[1])
    graph.add_output(y)
    derivative = differentiate(graph, [y], [w])
    values = np.random.default_rng(1)
    feeds = {x: values.standard_normal((5, 4)), w: values.standard_normal((4, 3))}
    done = run(derivative.forward, feeds, [y, *derivative.saved])
    given = {derivative.grad_outputs[y]: np.ones(5)} | {s: done[s] for s in derivative.saved}
    given |= {s: feeds[s] for s in derivative.forward_inputs_needed}
    found = run(derivative.backward, given, derivative.backward.outputs)[derivative.grad_inputs[w]]
    slope = 1 - np.tanh(feeds[x] @ feeds[w]) ** 2
    slope[:, 0] = 0
    np.testing.assert_allclose(found, feeds[x].T @ slope, rtol=1e-12)


def _layers(depth: int) -> tuple[int, int]:
    """(kernels added, nodes of the backward) for a stack of ``depth`` layers."""

    def build(b: Builder, x: str, w: str) -> str:
        for _ in range(depth):
            y = b.matmul(x, w)
            x = str(b.elementwise(lambda u, r: sympy.tanh(u) + r, y, x))
        return x

    problem = Problem(build, [(3, 4), (4, 4)])
    with mock.patch.object(Graph, "add_kernel", autospec=True, side_effect=Graph.add_kernel) as add_kernel:
        derivative = differentiate(problem.graph, problem.graph.outputs, problem.wanted)
    return add_kernel.call_count, len(derivative.backward.nodes())


def test_work_is_linear_in_the_number_of_layers() -> None:
    counts = {depth: _layers(depth) for depth in (1, 2, 4, 8, 16, 32)}
    for which in (0, 1):
        steps = [(counts[2 * d][which] - counts[d][which]) / d for d in (2, 4, 8, 16)]
        assert max(steps) == pytest.approx(min(steps)), counts


def test_rules_are_found_by_ancestry() -> None:
    class Mine(KernelNode):
        pass

    entry: Any = Mine(Kernel("m", {}, []))
    assert rule_of(entry).__name__ == "kernel_adjoint"

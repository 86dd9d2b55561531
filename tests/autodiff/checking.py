"""Compare the derivative of a graph with PyTorch's, in float64, for both policies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import dace
import numpy as np
import torch

from daceopt import ops
from daceopt.autodiff import Derivative, differentiate
from daceopt.autodiff.storage import Storage
from daceopt.ir.graph.graph import Graph
from daceopt.ir.interpreter.interpret import interpret
from daceopt.ir.nodes.builder import Builder
from tests.numerics import assert_within_rounding

ULPS = 64.0  # the reference is PyTorch in float64, which rounds as often as we do
POLICIES = ("recompute", "store")
Arrays = dict[str, np.ndarray]


class Problem:
    """A graph built from shapes, with values for its inputs: floats first, then integers."""

    def __init__(
        self,
        build: Callable[..., Any],
        shapes: Sequence[tuple[int, ...]] = (),
        values: Sequence[Any] | None = None,
        integers: Sequence[Any] = (),
    ):
        rng = np.random.default_rng(7)
        floats = (
            [rng.standard_normal(s) for s in shapes] if values is None else [np.asarray(v, np.float64) for v in values]
        )
        self.graph = Graph("problem")
        self.wanted = [self.graph.add_input("x", v.shape, dace.float64) for v in floats]
        whole = [np.asarray(v, np.int64) for v in integers]
        names = [*self.wanted, *(self.graph.add_input("k", v.shape, dace.int64) for v in whole)]
        self.values = [*floats, *whole]
        self.feeds: Arrays = dict(zip(names, self.values, strict=True))
        builder = Builder(self.graph, "forward")
        result = build(builder, *names)
        for name in result if isinstance(result, tuple) else (result,):
            self.graph.add_output(builder.copy(name) if self.graph.is_view(name) else name)
        ops.lower_all(self.graph, keep=ops.has_gradient)

    def derive(self, policy: str = "recompute") -> Derivative:
        derivative = differentiate(self.graph, self.graph.outputs, self.wanted, storage=Storage(policy))
        for graph in (derivative.forward, derivative.backward):
            ops.lower_all(graph)
            graph.validate()
        return derivative

    def execute(self, derivative: Derivative, incoming: Arrays) -> tuple[Arrays, dict[str, np.ndarray | None]]:
        """Outputs of the forward, and the gradient of each wanted input (None: no path)."""
        done = run(derivative.forward, self.feeds, [*derivative.forward.outputs, *derivative.saved])
        given = {derivative.grad_outputs[o]: g for o, g in incoming.items() if o in derivative.grad_outputs}
        given |= {n: done[n] for n in derivative.saved} | {n: self.feeds[n] for n in derivative.forward_inputs_needed}
        found = run(derivative.backward, given, derivative.backward.outputs)
        return done, {n: None if g is None else found[g] for n, g in derivative.grad_inputs.items()}


def run(graph: Graph, feeds: Arrays, wanted: Sequence[str]) -> Arrays:
    """The arrays ``wanted`` of one execution; a graph must be fed exactly its inputs."""
    assert set(feeds) == set(graph.inputs), (sorted(feeds), sorted(graph.inputs))
    done = interpret(graph, feeds)
    return {name: done[name] for name in wanted}


def check(
    build: Callable[..., Any], reference: Callable[..., Any], *shapes: tuple[int, ...], **given: Any
) -> list[Derivative]:
    """Outputs and gradients of ``build`` against those of ``reference`` (torch tensors in, one or a tuple out)."""
    problem = Problem(build, shapes, **given)
    tensors = [torch.tensor(v, requires_grad=v.dtype == np.float64) for v in problem.values]
    expected = reference(*tensors)
    expected = expected if isinstance(expected, tuple) else (expected,)
    rng = np.random.default_rng(11)
    seeds = [rng.standard_normal(tuple(e.shape)) for e in expected]
    leaves = tensors[: len(problem.wanted)]
    gradients = torch.autograd.grad(expected, leaves, [torch.tensor(s) for s in seeds], allow_unused=True)
    return [_compare(problem, policy, expected, seeds, gradients) for policy in POLICIES]


def _compare(problem: Problem, policy: str, expected: Any, seeds: Any, gradients: Any) -> Derivative:
    derivative = problem.derive(policy)
    outputs = problem.graph.outputs
    results, found = problem.execute(derivative, dict(zip(outputs, seeds, strict=True)))
    for name, value in zip(outputs, expected, strict=True):
        assert_within_rounding(results[name], value, value, ulps=ULPS)
    for name, gradient in zip(problem.wanted, gradients, strict=True):
        if found[name] is None:
            assert gradient is None or not gradient.any(), f"no gradient of {name}, expected {gradient}"
            continue
        reference = np.zeros_like(problem.feeds[name]) if gradient is None else gradient
        assert_within_rounding(found[name], reference, reference, ulps=ULPS)
    return derivative

"""Small operator graphs for the tests, and their execution by the interpreter."""

from __future__ import annotations

from typing import Any

import dace
import numpy as np

from daceopt.ir.graph.graph import Graph
from daceopt.ir.interpreter.interpret import interpret
from daceopt.ir.scalar import types
from daceopt.passes.transform import Outcome, Transformation
from tests.numerics import assert_within_rounding


class Net:
    """Builds a graph one operator at a time; arrays are named by what they are."""

    def __init__(self, opset: int = 21, **inputs: Any):
        self.graph = Graph("test")
        self.graph.source.opset[""] = opset
        for name, shape in inputs.items():
            setattr(self, name, self.graph.add_input(name, shape, dace.float32))

    def const(self, value: Any, dtype: Any = np.float32) -> str:
        return self.graph.add_constant("c", np.asarray(value, dtype))

    def op(self, op_type: str, *inputs: str | None, shape: Any = None, dtype: Any = None, **attributes: Any) -> str:
        """One operator; the result has the broadcast shape of the inputs unless ``shape`` says otherwise."""
        first = next(n for n in inputs if n is not None)
        present = [self.graph.shape(n) for n in inputs if n is not None]
        shape = np.broadcast_shapes(*present) if shape is None else shape
        out = self.graph.add_array(op_type, shape, dtype or self.graph.dtype(first))
        self.graph.add_operator(op_type, inputs, [out], attributes)
        return out

    def done(self, *outputs: str) -> Graph:
        for name in outputs:
            self.graph.add_output(name)
        return self.graph


def op_types(graph: Graph) -> list[str]:
    return [n.op_type for n in graph.operators()]


def near_misses(transformation: Transformation, graph: Graph) -> str:
    """Run where nothing may match; all near misses as one text."""
    outcome = transformation.run(graph)
    assert outcome.sites == []
    return "\n".join(outcome.near_misses)


def evaluate(graph: Graph, inputs: dict[str, np.ndarray], dtype: type[np.floating] | None = None) -> list[np.ndarray]:
    """All outputs of an operator graph, computed node by node; in ``dtype``, or in the types that it declares."""
    found = interpret(graph, inputs, dtype=dtype)
    return [np.asarray(found[n]) for n in graph.outputs]


def random_inputs(graph: Graph) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    return {n: generator.standard_normal(graph.shape(n)).astype(types.to_numpy(graph.dtype(n))) for n in graph.inputs}


def assert_same_numbers(before: Graph, after: Graph) -> None:
    """The graph after a step is as close to the float64 result as the one before it."""
    inputs = random_inputs(before)
    references = evaluate(before, {n: v.astype(np.float64) for n, v in inputs.items()}, np.float64)
    for ours, theirs, wanted in zip(evaluate(after, inputs), evaluate(before, inputs), references, strict=True):
        assert_within_rounding(ours, wanted, theirs)


def check(transformation: Transformation, graph: Graph, expected: list[str], sites: int = 1) -> Outcome:
    """Run; the operators that remain are ``expected``, the graph is valid and computes the same."""
    before = graph.copy()
    outcome = transformation.run(graph)
    graph.validate()
    assert op_types(graph) == expected
    assert len(outcome.sites) == sites
    assert_same_numbers(before, graph)
    assert transformation.run(graph).sites == []
    return outcome

"""One-operator graphs: what a lowering computes beside what ONNX's reference evaluator computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import torch
from onnx import helper
from onnx.reference import ReferenceEvaluator

from daceopt import ops
from daceopt.ir.graph.graph import Graph
from daceopt.ir.interpreter.interpret import interpret
from daceopt.ir.scalar import types
from tests.numerics import assert_within_rounding


def single(
    op_type: str,
    inputs: Sequence[np.ndarray | None],
    outputs: int = 1,
    constants: Sequence[int] = (),
    opset: int = 23,
    like: Sequence[np.ndarray] | None = None,
    **attributes: Any,
) -> tuple[Graph, dict[str, np.ndarray]]:
    """A graph of one operator and its inputs by name; the inputs at positions ``constants`` are constants.

    ``like`` gives the outputs' shapes and types where the reference evaluator cannot.
    """
    results = like or reference(op_type, inputs, outputs, opset, **attributes)
    graph = Graph(op_type)
    graph.source.opset[""] = opset
    names: list[str | None] = []
    feeds: dict[str, np.ndarray] = {}
    for k, value in enumerate(inputs):
        if value is None:
            names.append(None)
        elif k in constants:
            names.append(graph.add_constant(f"c{k}", value))
        else:
            names.append(graph.add_input(f"x{k}", value.shape, types.from_numpy(value.dtype)))
            feeds[str(names[-1])] = value
    made = [graph.add_array(f"y{k}", r.shape, types.from_numpy(r.dtype)) for k, r in enumerate(results)]
    graph.add_operator(op_type, names, made, attributes)
    for name in made:
        graph.add_output(name)
    return graph, feeds


def reference(
    op_type: str, inputs: Sequence[np.ndarray | None], outputs: int, opset: int, **attributes: Any
) -> list[np.ndarray]:
    """What ONNX's reference evaluator computes, in the types of the inputs."""
    present = {f"x{k}": v for k, v in enumerate(inputs) if v is not None}
    node = helper.make_node(
        op_type, [f"x{k}" if v is not None else "" for k, v in enumerate(inputs)], _names(outputs), **attributes
    )
    body = helper.make_graph(
        [node],
        "single",
        [helper.make_empty_tensor_value_info(n) for n in present],
        [helper.make_empty_tensor_value_info(n) for n in _names(outputs)],
    )
    model = helper.make_model(body, opset_imports=[onnx.helper.make_opsetid("", opset)])
    with np.errstate(all="ignore"):
        return [np.asarray(r) for r in ReferenceEvaluator(model).run(None, present)]


def _names(count: int) -> list[str]:
    return [f"y{k}" for k in range(count)]


def lowered(graph: Graph) -> Graph:
    """A copy with every operator replaced, checked."""
    graph = graph.copy()
    for node in graph.operators():
        assert ops.why_unsupported(graph, node) is None
    ops.lower_all(graph)
    graph.prune()
    graph.validate()
    assert not graph.operators()
    return graph


def check(
    op_type: str, inputs: Sequence[np.ndarray | None], outputs: int = 1, constants: Sequence[int] = (), opset: int = 23,
    exact: Callable[..., Any] | None = None, **attributes: Any,
) -> None:  # fmt: skip
    """The lowering agrees with the reference evaluated in float64, as closely as the reference in our own type does.

    ``exact`` (a function of float64 tensors) takes the place of the evaluator where that computes in float32 inside.
    """
    graph, feeds = single(op_type, inputs, outputs, constants, opset, **attributes)
    ours = interpret(lowered(graph), feeds)
    double = [v.astype(np.float64) if v is not None and v.dtype == np.float32 else v for v in inputs]
    wanted = (
        [exact(*map(torch.from_numpy, double))] if exact else reference(op_type, double, outputs, opset, **attributes)
    )
    theirs = reference(op_type, inputs, outputs, opset, **attributes)
    for name, value, peer in zip(graph.outputs, wanted, theirs, strict=True):
        assert_within_rounding(ours[name], value, peer)

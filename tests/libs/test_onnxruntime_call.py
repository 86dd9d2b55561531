"""Operators that run in ONNX Runtime from inside of a program."""

from __future__ import annotations

import dace
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from daceopt.errors import Unsupported
from daceopt.ir.graph.graph import Graph
from daceopt.libs import onnxruntime_call
from tests.libs.harness import compile_graph


def model_of(node: onnx.NodeProto) -> onnx.ModelProto:
    info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in (*node.input, *node.output) if n]
    body = helper.make_graph([node], "g", info[: len(node.input)], info[len(node.input) :])
    return helper.make_model(body, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def test_runs_one_operator_with_an_absent_input() -> None:
    node = helper.make_node("Clip", ['weird " name;', "", "top"], ["result"])
    graph = Graph("clip")
    x, top = graph.add_input("x", (2, 3), dace.float32), graph.add_input("top", (), dace.float32)
    y = graph.add_array("y", (2, 3), dace.float32)
    onnxruntime_call.add(graph, model_of(node), node, [x, None, top], [y])
    graph.add_output(y)
    values, limit, out = (
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.array([2.5], np.float32),
        np.zeros((2, 3), np.float32),
    )
    compile_graph(graph)(values, limit, out)
    np.testing.assert_array_equal(out, np.minimum(values, 2.5))


def test_operators_with_bodies_are_refused() -> None:
    body = helper.make_graph([], "body", [], [])
    node = helper.make_node("If", ["c"], ["y"], then_branch=body, else_branch=body)
    graph = Graph("if")
    with pytest.raises(Unsupported, match=r"If.*holds a graph"):
        onnxruntime_call.add(graph, model_of(node), node, [graph.add_input("c", (), dace.bool_)], [])

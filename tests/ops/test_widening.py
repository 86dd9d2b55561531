"""Half types in whole models: computed in float32, rounded where the model says so and at its end."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper

from daceopt.capture.onnx.file import load
from daceopt.capture.onnx.importer import import_model
from daceopt.ir.interpreter.interpret import interpret

X = np.linspace(0.1, 3, 24, dtype=np.float16).reshape(4, 6)


def run(*nodes: object) -> tuple[np.ndarray, list[str]]:
    """The result y of a graph that starts at x, and the operators of the imported graph."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT16, [4, 6])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT16, ["rows", "columns"])
    graph = helper.make_graph(list(nodes), "half", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    imported = import_model(load(model))
    found = interpret(imported, {imported.inputs[0]: X})[imported.outputs[0]]
    return found, [n.op_type for n in imported.operators()]


def node(op_type: str, source: str, target: str, **attributes: object) -> object:
    return helper.make_node(op_type, [source], [target], **attributes)


def test_a_chain_is_rounded_once() -> None:
    found, operators = run(node("Exp", "x", "a"), node("Transpose", "a", "b"), node("Sqrt", "b", "y"))
    np.testing.assert_array_equal(found, np.sqrt(np.exp(X.astype(np.float32))).T.astype(np.float16))
    assert operators.count("Cast") == 2  # into float32 and back


def test_a_cast_of_the_model_rounds() -> None:
    to_half, to_float = {"to": TensorProto.FLOAT16}, {"to": TensorProto.FLOAT}
    found, _ = run(
        node("Cast", "x", "w", **to_float),
        node("Exp", "w", "a"),
        node("Cast", "a", "b", **to_half),
        node("Sqrt", "b", "y"),
    )
    rounded = np.exp(X.astype(np.float32)).astype(np.float16).astype(np.float32)
    np.testing.assert_array_equal(found, np.sqrt(rounded).astype(np.float16))


def test_a_cast_to_the_same_type_is_none() -> None:
    found, _ = run(node("Exp", "x", "a"), node("Cast", "a", "b", to=TensorProto.FLOAT16), node("Sqrt", "b", "y"))
    np.testing.assert_array_equal(found, np.sqrt(np.exp(X.astype(np.float32))).astype(np.float16))


def test_what_only_moves_data_stays_narrow() -> None:
    found, operators = run(node("Transpose", "x", "y"))
    np.testing.assert_array_equal(found, X.T)
    assert operators == ["Transpose"]


def test_what_is_read_rounded_anywhere_is_read_rounded_everywhere() -> None:
    """Trilu takes half types as they are."""
    found, _ = run(node("Exp", "x", "a"), node("Trilu", "a", "t"), helper.make_node("Sub", ["a", "t"], ["y"]))
    np.testing.assert_array_equal(found, np.tril(np.exp(X.astype(np.float32)).astype(np.float16), -1))


def test_what_is_moved_before_it_is_read_rounded_is_rounded() -> None:
    moves = [node("Transpose", "a", "m"), node("Trilu", "m", "t"), node("Transpose", "t", "b")]
    found, _ = run(node("Exp", "x", "a"), *moves, helper.make_node("Sub", ["a", "b"], ["y"]))
    np.testing.assert_array_equal(found, np.triu(np.exp(X.astype(np.float32)).astype(np.float16), 1))

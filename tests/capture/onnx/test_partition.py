"""Which nodes of an ONNX model are its tail, and the two models that a cut makes of it."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

from daceopt.capture.onnx.file import load
from daceopt.capture.onnx.partition import Split, split
from daceopt.libs.onnxruntime_model import RuntimeModel
from tests.onnx_models import BOOL, FLOAT, INT64, STRING, detector, proto

node = helper.make_node


def cut(model: onnx.ModelProto) -> Split:
    """The parts, which are valid models of their own."""
    found = split(load(model))
    assert found is not None
    for part in (found.native, found.tail):
        onnx.checker.check_model(part, full_check=True)
    return found


def kinds(model: onnx.ModelProto) -> list[str]:
    return [n.op_type for n in model.graph.node]


def names(values) -> list[str]:
    return [v.name for v in values]


def run_in_parts(found: Split, model: onnx.ModelProto, *inputs: np.ndarray) -> dict[str, np.ndarray]:
    """Every output of both parts, by ONNX Runtime."""
    known = dict(zip(names(model.graph.input), inputs, strict=True))
    for part in (found.native, found.tail):
        results = RuntimeModel(part).run([known[name] for name in names(part.graph.input)])
        known |= dict(zip(names(part.graph.output), results, strict=True))
    return known


def test_the_end_of_a_detector() -> None:
    model = detector("batch")
    found = cut(model)
    assert kinds(found.tail) == ["Constant", "NonMaxSuppression", "Gather", "Squeeze", "Gather"]
    assert kinds(found.native).count("Conv") == 4 and "Constant" not in kinds(found.native)
    assert names(found.native.graph.input) == ["image"]
    assert names(found.native.graph.output) == ["scores", "boxes"]
    assert names(found.tail.graph.input) == ["boxes", "scores"]
    assert names(found.tail.graph.output) == ["kept", "selected"]
    assert {t.name for t in found.tail.graph.initializer} == {"limit", "overlap", "column"}
    operators = found.operators()
    assert "how long the result of NonMaxSuppression is depends on the data" in operators["NonMaxSuppression"]
    assert operators["Gather"] == operators["Squeeze"] == "depends on NonMaxSuppression"


def test_the_parts_compute_what_the_whole_does() -> None:
    model = detector()
    image = np.random.default_rng(1).standard_normal((1, 3, 32, 32)).astype(np.float32)
    found = run_in_parts(cut(model), model, image)
    for name, expected in zip(names(model.graph.output), RuntimeModel(model).run([image]), strict=True):
        np.testing.assert_array_equal(found[name], expected)


def test_what_is_needed_later_and_does_not_depend_on_the_tail_is_native() -> None:
    """NonZero in the middle: the second product does not wait for it, the third one does."""
    nodes = [node("MatMul", ["x", "w"], ["h"]), node("NonZero", ["h"], ["places"]), node("MatMul", ["h", "w"], ["g"])]
    nodes += [node("Transpose", ["places"], ["rows"]), node("GatherND", ["g", "rows"], ["picked"])]
    nodes += [node("MatMul", ["h", "g"], ["y"])]
    outputs = [("picked", FLOAT, ["count"]), ("y", FLOAT, [16, 16])]
    model = proto(nodes, [("x", FLOAT, [16, 16])], outputs, constants={"w": np.eye(16, dtype=np.float32)})
    found = cut(model)
    assert kinds(found.native) == ["MatMul", "MatMul", "MatMul"]
    assert kinds(found.tail) == ["NonZero", "Transpose", "GatherND"]
    assert names(found.native.graph.output) == ["y", "h", "g"]


def test_a_graph_inside_of_a_tail_node_reads_native_values_and_constants() -> None:
    branch = [
        helper.make_graph(
            [node(kind, ["h", "b"], [name])], kind, [], [helper.make_tensor_value_info(name, FLOAT, None)]
        )
        for kind, name in (("Add", "sum"), ("Sub", "difference"))
    ]
    nodes = [node("MatMul", ["x", "w"], ["h"]), node("NonZero", ["x"], ["places"]), node("Size", ["places"], ["size"])]
    nodes += [node("Greater", ["size", "zero"], ["some"])]
    nodes += [node("If", ["some"], ["y"], then_branch=branch[0], else_branch=branch[1])]
    constants = {"w": np.eye(16, dtype=np.float32), "b": np.ones(16, np.float32), "zero": np.array(0)}
    model = proto(nodes, [("x", FLOAT, [16, 16])], [("y", FLOAT, [16, 16])], constants=constants)
    found = cut(model)
    assert kinds(found.native) == ["MatMul"] and names(found.native.graph.output) == ["h"]
    assert names(found.tail.graph.input) == ["x", "h"]
    assert {t.name for t in found.tail.graph.initializer} == {"b", "zero"}
    x = np.ones((16, 16), np.float32)
    np.testing.assert_array_equal(run_in_parts(found, model, x)["y"], x + 1)


def test_text_goes_to_the_tail_as_constant_and_as_input() -> None:
    nodes = [node("MatMul", ["x", "w"], ["h"]), node("ArgMax", ["h"], ["best"], axis=1, keepdims=0)]
    nodes += [node("Gather", ["labels", "best"], ["label"]), node("StringConcat", ["prefix", "label"], ["y"])]
    constants = {"w": np.eye(16, dtype=np.float32), "labels": np.array([f"class {k}" for k in range(16)], object)}
    inputs = [("prefix", STRING, [1]), ("x", FLOAT, ["n", 16])]
    found = cut(proto(nodes, inputs, [("y", STRING, ["n"]), ("best", INT64, ["n"])], constants=constants))
    assert kinds(found.native) == ["MatMul", "ArgMax"] and names(found.native.graph.input) == ["x"]
    assert names(found.tail.graph.input) == ["prefix", "best"]
    assert "'labels'" in found.operators()["Gather"]


@pytest.mark.parametrize("columns", [4, 32])
def test_only_work_is_worth_a_cut(columns: int) -> None:
    """A reduction of a few numbers is none, whereas copies and sums never are."""
    nodes = [node("Transpose", ["x"], ["t"]), node("Add", ["t", "t"], ["a"]), node("NonZero", ["a"], ["places"])]
    outputs = [("places", INT64, [2, "count"])]
    assert split(load(proto(nodes, [("x", FLOAT, [4, columns])], outputs))) is None
    nodes.append(node("ReduceSum", ["x"], ["sum"]))
    found = split(load(proto(nodes, [("x", FLOAT, [4, columns])], [*outputs, ("sum", FLOAT, [1, 1])])))
    assert (found is not None) == (columns == 32)


def test_a_model_without_a_tail_is_not_cut() -> None:
    nodes = [node("MatMul", ["x", "x"], ["h"]), node("Equal", ["h", "x"], ["y"])]
    assert split(load(proto(nodes, [("x", FLOAT, [16, 16])], [("y", BOOL, [16, 16])]))) is None


def test_a_shape_that_a_call_settles_is_no_reason() -> None:
    nodes = [node("MatMul", ["x", "x"], ["h"]), node("Reshape", ["h", "shape"], ["r"]), node("NonZero", ["r"], ["y"])]
    inputs = [("x", FLOAT, [16, 16]), ("shape", INT64, [2])]
    model = proto(nodes, inputs, [("y", INT64, [2, "count"])])
    assert split(load(model)) is None, "the shape comes first: it may be all that is missing"
    found = split(load(model), hopeless=lambda gap: True)
    assert found is not None and kinds(found.tail) == ["Reshape", "NonZero"]

"""Models that ONNX Runtime runs though their declared shapes are wrong, meaningless or misjudged by inference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from daceopt import ops
from daceopt.capture.onnx.file import load
from daceopt.capture.onnx.importer import import_model
from daceopt.ir.interpreter.interpret import interpret
from tests.numerics import assert_within_rounding

n = helper.make_node
draw = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray:
    return draw.standard_normal(shape).astype(np.float32)


def model(
    nodes: Sequence[Any], declared: Sequence[Any], result: Sequence[Any] | None, opset: int = 17,
    constants: Mapping[str, np.ndarray] | None = None, inner: Mapping[str, Sequence[Any]] | None = None,
) -> onnx.ModelProto:  # fmt: skip
    """``declared``: the shape of the input ``x``; ``result``: that of ``y``; ``inner``: those of values between."""
    value = helper.make_tensor_value_info
    stored = [numpy_helper.from_array(v, k) for k, v in (constants or {}).items()]
    between = [value(k, TensorProto.FLOAT, s) for k, s in (inner or {}).items()]
    inputs, outputs = [value("x", TensorProto.FLOAT, declared)], [value("y", TensorProto.FLOAT, result)]
    graph = helper.make_graph(nodes, "g", inputs, outputs, stored, value_info=between)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10 if opset > 17 else 8)


def check(made: onnx.ModelProto, x: np.ndarray) -> None:
    """The lowering computes in float32 what ONNX Runtime does, as near to float64."""
    (theirs,) = onnxruntime.InferenceSession(made.SerializeToString()).run(None, {"x": x})
    graph = import_model(load(made))
    feeds = {graph.inputs[0]: x}
    ops.lower_all(graph)
    found, exact = (interpret(graph, feeds, dtype)[graph.outputs[0]] for dtype in (None, np.float64))
    assert_within_rounding(found, exact, theirs)
    assert_within_rounding(theirs, exact, found)


IMAGE = (2, 3, 6, 8)
WEIGHTS = {"w": normal(4, 3, 3, 3)}
RELU, CONV = [n("Relu", ["x"], ["y"])], [n("Conv", ["x", "w"], ["y"], pads=[1] * 4)]
DECLARED = {
    "negative": model(RELU, [-1, 3, -1, -1], [-1, 3, -1, -1]),
    "one name for all": model(CONV, ["?", 3, "?", "?"], ["?", 4, "?", "?"], constants=WEIGHTS),
    "none": model(CONV, ["None", 3, "None", "None"], ["None", 4, "None", "None"], constants=WEIGHTS),
    "another rank": model([n("ReduceMean", ["x"], ["y"], axes=[2, 3])], ["a", 3, "b", "c"], ["a", 3]),
    "another extent": model(CONV, list(IMAGE), [2, 9, 6, 8], constants=WEIGHTS),
    "inside": model([n("Abs", ["x"], ["z"]), n("Relu", ["z"], ["y"])], list(IMAGE), list(IMAGE), inner={"z": [2, 5]}),
}


@pytest.mark.parametrize("name", DECLARED)
def test_the_graph_decides(name: str) -> None:
    (theirs,) = onnxruntime.InferenceSession(DECLARED[name].SerializeToString()).run(None, {"x": (x := normal(*IMAGE))})
    loaded = load(DECLARED[name])
    for value in loaded.graph.input:  # as a call fixes them
        for dim, extent in zip(value.type.tensor_type.shape.dim, IMAGE):
            dim.dim_value = extent
    graph = import_model(load(loaded))
    assert_within_rounding(interpret(graph, {graph.inputs[0]: x})[graph.outputs[0]], theirs.astype(np.float64), theirs)


@pytest.mark.parametrize("declared", [None, (1, 13, 17, 2)])
def test_spectra_have_one_side_unless_told_otherwise(declared: Sequence[int] | None) -> None:
    lengths = {"step": np.array(8), "length": np.array(32)}
    node = n("STFT", ["x", "step", "", "length"], ["y"])
    check(model([node], [1, 128, 1], declared, constants=lengths), normal(1, 128, 1))


@pytest.mark.parametrize("behind", [[], [n("Relu", ["z"], ["y"])]])
def test_groups_without_a_declared_result(behind: list[Any]) -> None:
    node = n("GroupNormalization", ["x", "s", "b"], ["z" if behind else "y"], num_groups=2)
    made = model([node, *behind], ["n", 4, "h", 5], None, 21, {"s": normal(4), "b": normal(4)})
    check(made, normal(2, 4, 6, 5))


@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize(("stride", "kernel", "added"), [(2, 3, 1), (2, 2, 1), (3, 2, 2), (3, 3, 1)])
@pytest.mark.parametrize("dilation", [1, 2])
def test_same_padding_of_transposed_convolutions(
    mode: str, stride: int, kernel: int, added: int, dilation: int
) -> None:
    """Whatever the padding of the result, it is ``stride`` times as long."""
    steps = {"strides": [stride] * 2, "dilations": [dilation] * 2}
    node = n("ConvTranspose", ["x", "w"], ["y"], auto_pad=mode, output_padding=[added] * 2, **steps)
    check(model([node], [1, 2, 3, 4], None, 11, {"w": normal(2, 2, kernel, kernel)}), normal(1, 2, 3, 4))


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("aligned", [0, 1])
def test_cubic_samples_at_the_border(padding: str, aligned: int) -> None:
    """Each of the sixteen that are read is brought inside, not the point."""
    node = n("GridSample", ["x", "g"], ["y"], mode="cubic", padding_mode=padding, align_corners=aligned)
    check(model([node], list(IMAGE), None, 20, {"g": normal(2, 7, 5, 2) * np.float32(1.3)}), normal(*IMAGE))


@pytest.mark.parametrize("op_type", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize("opset", [11, 19, 22])
def test_windows_that_begin_behind_the_image(op_type: str, opset: int) -> None:
    node = n(op_type, ["x"], ["y"], kernel_shape=[3, 3], strides=[3, 3], ceil_mode=1, pads=[1] * 4)
    check(model([node], [1, 2, 2, 2], None, opset), normal(1, 2, 2, 2))


@pytest.mark.parametrize("op_type", ["Squeeze", "Unsqueeze"])
def test_axes_from_behind_in_old_versions(op_type: str) -> None:
    shape = (1, 3, 1, 5)
    check(model([n(op_type, ["x"], ["y"], axes=[-2])], list(shape), None, 9), normal(*shape))


def test_what_old_versions_have_in_attributes() -> None:
    check(model([n("Reshape", ["x"], ["y"], shape=[3, 4])], [2, 6], None, 4), normal(2, 6))

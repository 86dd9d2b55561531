"""Large initializers stand aside during checks and inference, and come back."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from daceopt.capture.onnx.file import load
from daceopt.errors import ModelFileError

WEIGHTS = np.random.default_rng(0).standard_normal((256, 128)).astype(np.float32)


def model(also_input: bool = False) -> onnx.ModelProto:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 256])
    w = helper.make_tensor_value_info("w", TensorProto.FLOAT, WEIGHTS.shape)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", 64])
    shape = numpy_helper.from_array(np.array([-1, 64]), "shape")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Reshape", ["h", "shape"], ["y"])]
    inputs = [x, w] if also_input else [x]
    graph = helper.make_graph(nodes, "g", inputs, [y], [numpy_helper.from_array(WEIGHTS, "w"), shape])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.mark.parametrize("also_input", [False, True])
def test_the_model_is_whole_again(also_input: bool) -> None:
    given = model(also_input)
    loaded = load(given)
    assert [v.name for v in loaded.graph.input] == [v.name for v in given.graph.input]
    found = {t.name: numpy_helper.to_array(t) for t in loaded.graph.initializer}
    np.testing.assert_array_equal(found["w"], WEIGHTS)
    assert found["shape"].tolist() == [-1, 64]
    (inner,) = (v.type.tensor_type.shape.dim for v in loaded.graph.value_info if v.name == "h")
    assert [d.dim_value or d.dim_param for d in inner] == ["batch", 128]  # inferred from what stood aside
    assert len(given.graph.initializer) == 2


def test_a_large_tensor_without_its_data_is_refused() -> None:
    damaged = model()
    damaged.graph.initializer[0].raw_data = damaged.graph.initializer[0].raw_data[:-4]
    with pytest.raises(ModelFileError, match="declares shape"):
        load(damaged)

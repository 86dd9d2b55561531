"""daceopt through ONNX's interface for backends."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

import daceopt
from daceopt.errors import DaceoptError, FallbackWarning, ModelFileError, Unsupported

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def model(op: str = "Split", outputs: tuple[str, ...] = ("first", "1"), **attributes) -> onnx.ModelProto:
    node = helper.make_node(op, ["x"], outputs, **attributes)
    shape = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 3]) for n in outputs]
    graph = helper.make_graph([node], "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])], shape)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def test_prepare_and_run() -> None:
    backend = daceopt.onnx_backend
    prepared = backend.prepare(model(num_outputs=2), "CPU", fallback=False, recipe="none")
    for inputs in ([X], X, {"x": X}):
        found = prepared.run(inputs)
        np.testing.assert_array_equal(found.first, X[:1])
        np.testing.assert_array_equal(found["1"], X[1:])
        assert len(found) == 2
    assert isinstance(prepared, onnx.backend.base.BackendRep)
    assert issubclass(backend.Backend, onnx.backend.base.Backend)


def test_run_model_and_run_node() -> None:
    backend = daceopt.onnx_backend
    assert len(backend.run_model(model(num_outputs=2), [X], fallback=False)) == 2
    relu = helper.make_node("Relu", ["a"], ["b"])
    np.testing.assert_array_equal(backend.run_node(relu, [-X], fallback=False).b, np.zeros((2, 3)))
    squeeze = helper.make_node("Squeeze", ["a"], ["b"], axes=[0])
    assert backend.run_node(squeeze, [X[:1]], opset_version=11, fallback=False)[0].shape == (3,)
    reshape = helper.make_node("Reshape", ["a", "shape"], ["b"])
    assert backend.run_node(reshape, [X, np.array([3, -1])], fallback=False)[0].shape == (3, 2)
    declared = backend.run_node(relu, [X], outputs_info=[(np.float32, (2, 3))], fallback=False)
    np.testing.assert_array_equal(declared[0], X)


def test_what_is_not_supported() -> None:
    backend = daceopt.onnx_backend
    assert backend.supports_device("CPU") and not backend.supports_device("CUDA:99")
    assert backend.supports_device("CUDA:0") == torch.cuda.is_available()
    assert not backend.supports_device("TPU") and not backend.supports_device("meta")
    with pytest.raises(DaceoptError, match="'CUDA'"):
        backend.prepare(model(num_outputs=2), "CUDA")
    with pytest.raises(DaceoptError, match=r"unknown options \['speed'\]"):
        backend.prepare(model(num_outputs=2), speed=1)
    with pytest.raises(DaceoptError, match="reads"):
        backend.run_node(helper.make_node("Add", ["a", "b"], ["c"]), [X])
    with pytest.raises(DaceoptError, match="Add does not fit these inputs"):
        backend.run_node(helper.make_node("Add", ["a", "b"], ["c"]), [X, np.ones((4, 4), np.float32)])


def test_hostile_models_are_refused_as_everywhere() -> None:
    broken = model(num_outputs=2)
    broken.graph.node[0].input[0] = "nowhere"
    with pytest.raises(ModelFileError, match="checker.*nowhere"):
        daceopt.onnx_backend.prepare(broken)


def test_a_fallback_is_announced_at_the_callers_line() -> None:
    node = helper.make_node("NonZero", ["x"], ["y"])
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [3]) for n in "xy")
    y = helper.make_tensor_value_info("y", TensorProto.INT64, [1, "count"])
    built = helper.make_model(helper.make_graph([node], "g", [x], [y]), ir_version=8)
    built.opset_import[0].version = 18
    with pytest.warns(FallbackWarning, match="ONNX Runtime") as caught:
        found = daceopt.onnx_backend.run_model(built, [np.array([0, 1, 1], np.float32)])
    assert found[0].tolist() == [[1, 2]]
    assert [w.filename for w in caught] == [__file__]
    assert not daceopt.onnx_backend.is_compatible(built, fallback=False)
    with pytest.raises(Unsupported, match="NonZero"):
        daceopt.onnx_backend.prepare(built, fallback=False)

"""Small ONNX models that more than one test reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FLOAT, INT64, BOOL, STRING = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL, TensorProto.STRING


def proto(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[tuple[Any, ...]],
    outputs: Sequence[tuple[Any, ...]],
    opset: int = 20,
    constants: Mapping[str, np.ndarray] | None = None,
) -> onnx.ModelProto:
    """A model of tensors, given as (name, element type, shape)."""
    values = [helper.make_tensor_value_info(*v) for v in inputs], [helper.make_tensor_value_info(*v) for v in outputs]
    tensors = [numpy_helper.from_array(value, name) for name, value in (constants or {}).items()]
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_model(helper.make_graph(nodes, "g", *values, tensors), opset_imports=opsets, ir_version=10)


def detector(batch: int | str | None = 1) -> onnx.ModelProto:
    """Two convolutions, a head of boxes and one of scores per place; the boxes that NonMaxSuppression selects."""
    generator = np.random.default_rng(0)

    def weights(*shape: int) -> np.ndarray:
        return (generator.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)

    constants = {"w1": weights(8, 3, 3, 3), "w2": weights(8, 8, 3, 3), "wb": weights(4, 8, 1, 1)}
    constants |= {"ws": weights(2, 8, 1, 1), "boxes_shape": np.array([0, 4, -1]), "scores_shape": np.array([0, 2, -1])}
    constants |= {"limit": np.array([64]), "overlap": np.array([0.5], np.float32), "column": np.array([2])}
    node = helper.make_node
    nodes = [
        node("Conv", ["image", "w1"], ["c1"], pads=[1] * 4, strides=[2, 2]),
        node("Relu", ["c1"], ["r1"]),
        node("Conv", ["r1", "w2"], ["c2"], pads=[1] * 4, strides=[2, 2]),
        node("Relu", ["c2"], ["r2"]),
        node("Conv", ["r2", "wb"], ["hb"]),
        node("Conv", ["r2", "ws"], ["hs"]),
        node("Reshape", ["hb", "boxes_shape"], ["flat"]),
        node("Transpose", ["flat"], ["boxes"], perm=[0, 2, 1]),
        node("Reshape", ["hs", "scores_shape"], ["logits"]),
        node("Sigmoid", ["logits"], ["scores"]),
        node("Constant", [], ["threshold"], value_floats=[0.5]),
        node("NonMaxSuppression", ["boxes", "scores", "limit", "overlap", "threshold"], ["selected"], name="nms"),
        node("Gather", ["selected", "column"], ["places"], axis=1),
        node("Squeeze", ["places"], ["kept_places"]),
        node("Gather", ["boxes", "kept_places"], ["kept"], axis=1),
    ]
    outputs = [
        ("kept", FLOAT, [batch, "count", 4]),
        ("selected", INT64, ["count", 3]),
        ("scores", FLOAT, [batch, 2, 64]),
    ]
    return proto(nodes, [("image", FLOAT, [batch, 3, 32, 32])], outputs, constants=constants)

"""Sizes that a file leaves open are sizes of one program, wherever shapes follow from them."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from daceopt import from_onnx
from daceopt.models.onnx_model import OnnxModel
from daceopt.models.variants import Variant
from tests.numerics import assert_within_rounding

n = helper.make_node
LENGTHS = ((2, 5), (3, 5), (1, 8), (4, 6))


def _model(declared: list[str | int | None]) -> OnnxModel:
    draw = np.random.default_rng(0)
    weights = {"w": draw.standard_normal((6, 4)).astype(np.float32), "s": np.array([0, -1])}
    nodes = [n("MatMul", ["x", "w"], ["h"]), n("Softmax", ["h"], ["p"]), n("Reshape", ["p", "s"], ["y"])]
    values = [helper.make_tensor_value_info(k, TensorProto.FLOAT, s) for k, s in (("x", declared), ("y", None))]
    stored = [numpy_helper.from_array(v, k) for k, v in weights.items()]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], stored)
    return from_onnx(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), fallback=False
    )


@pytest.mark.parametrize("declared", [[None, None, 6], ["?", "?", 6], [-1, -1, 6], ["open_0", None, 6]])
def test_one_program_for_all_sizes(declared: list[str | int | None]) -> None:
    model, draw = _model(declared), np.random.default_rng(1)
    programs: set[Variant | None] = set()
    session = onnxruntime.InferenceSession(model.source.SerializeToString())
    for batch, length in LENGTHS:
        x = draw.standard_normal((batch, length, 6)).astype(np.float32)
        ours, (theirs,) = model(x), session.run(None, {"x": x})
        assert_within_rounding(ours, theirs.astype(np.float64))
        programs.add(model.pair)
    assert len(programs) == 1 and not model.dependence

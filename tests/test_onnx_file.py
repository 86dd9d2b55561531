"""``from_onnx`` on models whose sizes are not known before running."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper
from torch import nn

import daceopt
from daceopt.errors import DaceoptError, Unsupported
from tests.numerics import assert_within_rounding


class Scores(nn.Module):
    """Attention scores over a sequence of any length; the result's extent is a polynomial of it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = x.reshape(*x.shape[:2], 2, 4).transpose(1, 2)
        return torch.softmax(heads @ heads.transpose(-1, -2), -1).flatten(1)


@pytest.mark.filterwarnings("ignore")  # of the exporter
def test_sizes_that_are_polynomials_of_the_inputs(tmp_path: Path) -> None:
    path, model = tmp_path / "scores.onnx", Scores().eval()
    sizes = ({0: "b", 1: "n"},)
    torch.onnx.export(model, (torch.randn(2, 3, 8),), str(path), dynamo=True, dynamic_shapes=sizes, verbose=False)
    compiled = daceopt.from_onnx(path, fallback=False, verify="numerics")
    for shape in ((2, 3, 8), (3, 5, 8)):
        x = torch.randn(shape)
        assert_within_rounding(compiled(x), model(x.double()), model(x))
    with pytest.raises(DaceoptError, match="expected torch.float32 of shape"):
        compiled(np.zeros((2, 3)))


@pytest.mark.parametrize("verify", [None, "numerics"])
def test_sizes_that_follow_from_no_input_are_unsupported(verify: str | None) -> None:
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["r"]), helper.make_node("Relu", ["r"], ["y"])]
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [12]),
        helper.make_tensor_value_info("shape", TensorProto.INT64, [2]),
    ]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", "columns"])
    model = helper.make_model(helper.make_graph(nodes, "g", inputs, [output]), ir_version=10)
    with pytest.raises(Unsupported, match="is the extent of no input's dimension.*Export the model"):
        daceopt.from_onnx(model, verify=verify)

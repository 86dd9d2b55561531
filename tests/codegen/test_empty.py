"""Problems of no elements: an extent of 0 anywhere, known when compiling or not, in both directions."""

from __future__ import annotations

from typing import Any

import dace
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from daceopt import libs, recipes
from daceopt.capture.onnx.importer import import_model
from daceopt.codegen import trial
from daceopt.codegen.bundle import Bundle
from daceopt.errors import Unsupported
from daceopt.ir.control.imported import Gradients, Imported
from daceopt.ir.graph.graph import Graph
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.scalar.dims import row_major
from daceopt.passes.verification_built import Built, check
from daceopt.programs import derivation

F = dace.float32
FEATURES = (0, 3, 8, 8)  # a batch of nothing


def whole(*values: int) -> np.ndarray:
    return np.asarray(values, np.int64)


# operator, operands (shapes of inputs, or values), attributes
CASES: list[tuple[str, list[Any], dict[str, Any]]] = [
    ("Conv", [FEATURES, (4, 3, 3, 3), (4,)], {"pads": [1, 1, 1, 1]}),
    ("ConvTranspose", [FEATURES, (3, 4, 3, 3)], {"strides": [2, 2]}),
    ("MaxPool", [FEATURES], {"kernel_shape": [2, 2]}),
    ("AveragePool", [FEATURES], {"kernel_shape": [2, 2]}),
    ("GlobalAveragePool", [FEATURES], {}),
    ("GlobalMaxPool", [(2, 0, 4, 4)], {}),
    ("BatchNormalization", [(0, 4, 2), (4,), (4,), (4,), (4,)], {}),
    ("Resize", [FEATURES, np.zeros(0, np.float32), np.asarray([1, 1, 2, 2], np.float32)], {"mode": "linear"}),
    ("MatMul", [(0, 4), (4, 5)], {}),
    ("MatMul", [(3, 0), (0, 5)], {}),
    ("MatMul", [(3, 4), (4, 0)], {}),
    ("MatMul", [(2, 3, 0), (2, 0, 5)], {}),
    ("MatMul", [(0, 3, 4), (0, 4, 5)], {}),
    ("Gemm", [(3, 0), (0, 5), (5,)], {}),
    ("Gemm", [(0, 4), (5, 4)], {"transB": 1}),
    ("Einsum", [(0, 3, 4), (0, 4, 5)], {"equation": "bij,bjk->bik"}),
    ("Softmax", [(0, 4)], {}),
    ("Softmax", [(3, 0)], {}),
    ("LogSoftmax", [(3, 0)], {}),
    ("LayerNormalization", [(0, 4), (4,), (4,)], {}),
    ("LayerNormalization", [(3, 0), (0,)], {}),
    ("ReduceSum", [(3, 0), whole(1)], {}),
    ("ReduceSum", [(0, 4), whole(1)], {}),
    ("ReduceMean", [(3, 0), whole(1)], {}),
    ("ReduceProd", [(3, 0), whole(1)], {}),
    ("ReduceL2", [(3, 0), whole(1)], {}),
    ("ReduceMax", [(0, 4), whole(1)], {}),
    ("CumSum", [(0, 4), np.asarray(0)], {}),
    ("Concat", [(0, 4), (3, 4)], {"axis": 0}),
    ("Concat", [(0, 4), (0, 5)], {"axis": 1}),
    ("Pad", [(0, 4), whole(1, 0, 1, 0)], {}),
    ("Pad", [(0, 4), whole(0, 1, 0, 1)], {"mode": "reflect"}),
    ("Gather", [(3, 0), whole(1, 2)], {"axis": 0}),
    ("Gather", [(3, 4), whole()], {"axis": 0}),
    ("GatherElements", [(0, 4), np.zeros((0, 4), np.int64)], {"axis": 1}),
    ("ScatterElements", [(3, 4), np.zeros((0, 4), np.int64), (0, 4)], {"axis": 0}),
    ("Reshape", [(0, 4, 6), whole(-1, 24)], {}),
    ("Transpose", [(0, 4, 2)], {"perm": [2, 0, 1]}),
    ("Slice", [(3, 4), whole(2), whole(2), whole(0)], {}),
    ("Expand", [(0, 1), whole(0, 4)], {}),
    ("Tile", [(0, 4), whole(2, 3)], {}),
    ("Add", [(0, 4), (4,)], {}),
    ("Mul", [(3, 1, 0), (1, 4, 0)], {}),
    ("GRU", [(5, 0, 4), (1, 9, 4), (1, 9, 3)], {"hidden_size": 3}),
]


def model(op_type: str, operands: list[Any], attributes: dict[str, Any]) -> onnx.ModelProto:
    names = [f"x{k}" for k in range(len(operands))]
    shapes = {n: o for n, o in zip(names, operands) if isinstance(o, tuple)}
    given = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items()]
    known = [numpy_helper.from_array(o, n) for n, o in zip(names, operands) if not isinstance(o, tuple)]
    node = helper.make_node(op_type, names, ["y"], **attributes)
    graph = helper.make_graph([node], "empty", given, [onnx.ValueInfoProto(name="y")], known)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return onnx.shape_inference.infer_shapes(made, strict_mode=True, data_prop=True)


def directions(graph: Graph, bundle: Bundle, backward: bool = True) -> list[Built]:
    everything = Gradients(tuple(range(len(graph.inputs))), tuple(range(len(graph.outputs))))
    found = derivation.derive(Imported(graph, everything if backward else None), recipes.get("cpu")).directions()
    return [Built(g, r, bundle.add(g, r, libs.implement)) for g, r in found]


def test_operators_over_nothing() -> None:
    """As the interpreter says, which is NumPy: sums are 0, products 1, means NaN."""
    bundle = Bundle()
    programs = {str(case): directions(import_model(model(*case)), bundle) for case in CASES}
    for built in programs.values():
        check(*built)


@pytest.mark.parametrize("shape", [(4, 0, 3, 3), (0, 3, 3, 3)])
def test_convolutions_without_channels_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(Unsupported, match="which has no elements"):
        directions(import_model(model("Conv", [(2, shape[1], 8, 8), shape], {})), Bundle())


@pytest.mark.parametrize("batch", [0, 1, 2])
def test_a_batch_of_nothing_that_is_known_when_running(batch: int) -> None:
    """One program for all sizes: products, pools, reductions over the batch, softmax, and their gradients."""
    graph = Graph("open")
    n = dace.symbolic.symbol("s0", dace.int64)
    x, w = graph.add_input("x", (n, 6, 4), F), graph.add_input("w", (24, 5), F)
    graph.symbols["s0"] = (x, 0)
    b = Builder(graph)
    product = b.matmul(b.reshape(x, (n, 24)), w)
    soft = graph.add_array("soft", (n, 5), F)
    graph.add_operator("Softmax", [product], [soft])
    graph.add_output(b.copy(soft))
    graph.add_output(b.reduce("sum", lambda v: v * v, soft, axes=(0,)))
    inputs = {x: np.ones((batch, 6, 4), np.float32) * np.arange(4, dtype=np.float32)}
    check(*directions(graph, Bundle()), inputs=inputs)


def test_sums_of_nothing_are_zero() -> None:
    graph = Graph("nothing")
    x = graph.add_input("x", (3, 0), F)
    b = Builder(graph)
    graph.add_output(b.reduce("sum", None, x, axes=(1,)))
    graph.add_output(b.reduce("sum", None, x, axes=(0, 1)))
    (built,) = directions(graph, Bundle(), backward=False)
    found = trial.run(built.program, {"input:0": np.zeros((3, 0), np.float32)}).outputs
    assert found["output:0"].tolist() == [0, 0, 0] and found["output:1"] == 0


def test_axes_of_empty_arrays_are_told_apart() -> None:
    """Strides of 0 would be those of a broadcast."""
    assert row_major((3, 0, 4)) == (4, 4, 1)
    assert row_major((3, 2, 4)) == (8, 4, 1)

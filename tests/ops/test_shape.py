"""Rearranging, joining and indexing operators, and the shapes that are known only as symbols."""

from __future__ import annotations

from typing import Any

import dace
import numpy as np
import pytest

from daceopt import ops
from daceopt.ir.graph.graph import Graph
from daceopt.ir.interpreter.interpret import interpret
from tests.ops.single import check, lowered, single

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
DTYPES = ("float32", "float64", "int64", "bool", "uint8")


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_type_is_moved(dtype: str) -> None:
    x = X.astype(dtype)
    check("Transpose", [x], perm=[2, 0, 1])
    check("Reshape", [x, ints(4, -1)], constants=[1])
    check("Concat", [x, x[:, :1]], axis=1)
    check("Gather", [x, ints(1, 0)], axis=2)
    check("Expand", [x[:, :1], ints(2, 3, 4)], constants=[1])


CASES = [
    ("Transpose", [X], [], {}),
    ("Reshape", [X, ints(0, 12)], [1], {}),
    ("Flatten", [X], [], {"axis": 2}),
    ("Flatten", [X], [], {"axis": 0}),
    ("Squeeze", [X[:, :1], ints(1)], [1], {}),
    ("Squeeze", [X[:1, :1]], [], {}),
    ("Unsqueeze", [X, ints(0, -1)], [1], {}),
    ("Expand", [np.float32(3).reshape(()), ints(2, 3)], [1], {}),
    ("Tile", [X, ints(2, 1, 3)], [1], {}),
    ("Shape", [X], [], {}),
    ("Shape", [X], [], {"start": 1, "end": -1}),
    ("Size", [X], [], {}),
    ("ConstantOfShape", [ints(2, 3)], [0], {}),
    ("Range", [np.int64(2), np.int64(11), np.int64(3)], [0, 1, 2], {}),
    ("Range", [np.float32(1), np.float32(0), np.float32(-0.25)], [0, 1, 2], {}),
    ("EyeLike", [X[0]], [], {"k": 1}),
    ("DepthToSpace", [np.arange(32).reshape(1, 8, 2, 2)], [], {"blocksize": 2}),
    ("DepthToSpace", [np.arange(32).reshape(1, 8, 2, 2)], [], {"blocksize": 2, "mode": "CRD"}),
    ("SpaceToDepth", [np.arange(48).reshape(1, 2, 6, 4)], [], {"blocksize": 2}),
    ("Trilu", [X, np.int64(1)], [1], {}),
    ("Trilu", [X], [], {"upper": 0}),
    ("Slice", [X, ints(1), ints(3), ints(2)], [1, 2, 3], {}),
    ("Slice", [X, ints(0, -3), ints(2, 1000), ints(1, 2), ints(1, 2)], [1, 2, 3, 4], {}),
    ("Slice", [X, ints(-1, 2), ints(-1000, 0), ints(2, 1), ints(-1, -2)], [1, 2, 3, 4], {}),
    ("Slice", [X, ints(2), ints(2), ints(1)], [1, 2, 3], {}),
    ("Concat", [X, X[:, :, :2], X[:, :, 1:]], [], {"axis": -1}),
    ("Concat", [X, X[:, :0]], [], {"axis": 1}),
    ("Pad", [X, ints(0, 1, 2, 1, 0, 1)], [1], {}),
    ("Pad", [X, ints(1, 2), np.float32(7), ints(-1)], [1, 3], {}),
    ("Pad", [X, ints(0, 1, 2, 1, 0, 1)], [1], {"mode": "reflect"}),
    ("Pad", [X, ints(0, 1, 2, 1, 0, 1)], [1], {"mode": "edge"}),
    ("Pad", [X, ints(0, 1, 2, 1, 0, 1)], [1], {"mode": "wrap"}),
    ("Gather", [X, ints(-1, 0, 2)], [], {"axis": 1}),
    ("Gather", [X, np.array([[0, 1], [-1, 0]], np.int32)], [], {"axis": 0}),
    ("Gather", [X, np.int64(-2)], [], {"axis": 2}),
    ("Gather", [X, ints()], [], {"axis": 2}),
    ("GatherElements", [X, np.array([[[0, 1, -1, 2]], [[2, 2, 0, -3]]])], [], {"axis": 1}),
]


FAR = 2**63 - 1
CASES += [
    ("Slice", [X, ints(FAR), ints(-FAR - 1), ints(1), ints(-1)], [1, 2, 3, 4], {}),
    ("Slice", [X, ints(-100), ints(FAR), ints(-1), ints(3)], [1, 2, 3, 4], {}),
    ("Slice", [X, np.int32([1]), np.int32([2**31 - 1]), np.int32([-1])], [1, 2, 3], {}),
    ("Slice", [X, ints(100), ints(0), ints(2), ints(-2)], [1, 2, 3, 4], {}),
    ("Slice", [X, ints(3), ints(1), ints(2), ints(1)], [1, 2, 3, 4], {}),
    ("Flatten", [X], [], {"axis": 3}),
    ("Flatten", [X], [], {"axis": -2}),
    ("Flatten", [X[:, :0]], [], {"axis": 1}),
    ("Reshape", [X[:0], ints(0, 3, 2, 2)], [1], {}),
    ("Reshape", [X[:0], ints(3, 0, 5)], [1], {"allowzero": 1}),
    ("Reshape", [np.float32(5).reshape(()), ints(1, 1)], [1], {}),
    ("Reshape", [X[:1, :1, :1], ints()], [1], {}),
    ("Transpose", [X[:0]], [], {"perm": [1, 0, 2]}),
    ("Expand", [X[:, :0], ints(5, 1, 1, 1, 4)], [1], {}),
    ("Tile", [X, ints(1, 0, 2)], [1], {}),
    ("Tile", [X[:0], ints(2, 2, 2)], [1], {}),
    ("Shape", [X], [], {"start": -2}),
    ("Shape", [X[:0]], [], {}),
    ("Size", [X[:0]], [], {}),
    ("ConstantOfShape", [ints(2, 0)], [0], {}),
    ("ConstantOfShape", [ints()], [0], {}),
    ("Range", [np.int32(5), np.int32(5), np.int32(1)], [0, 1, 2], {}),
    ("EyeLike", [X[0]], [], {"k": -5}),
    ("Trilu", [X > 5], [], {"upper": 0}),
    ("Trilu", [X[:0]], [], {}),
    ("Concat", [ints(1), ints(), ints(2, 3)], [0], {"axis": 0}),
    ("Concat", [X[:, :0], X[:, :0]], [], {"axis": 1}),
    ("SpaceToDepth", [np.arange(48).reshape(1, 2, 6, 4)], [], {"blocksize": 2, "mode": "CRD"}),
    ("Pad", [X[:0], ints(0, 1, 2, 1, 0, 1)], [1], {}),
    ("Pad", [X.astype(np.int8), ints(0, 1, 2, 1, 0, 1), np.int8(-3)], [1], {}),
    ("Pad", [X > 3, ints(0, 1, 2, 1, 0, 1)], [1], {"mode": "edge"}),
    ("Where", [X > 4, X, np.float32(0)], [], {}),
    ("Where", [X[:0] > 4, X[:0], X[:1]], [], {}),
    ("CenterCropPad", [X, ints(3, 5)], [1], {"axes": [1, -1]}),
]


@pytest.mark.parametrize("op_type, inputs, constants, attributes", CASES, ids=lambda v: v if isinstance(v, str) else "")
def test_case(op_type: str, inputs: list[np.ndarray], constants: list[int], attributes: dict[str, object]) -> None:
    check(op_type, [np.asarray(v) for v in inputs], constants=constants, **attributes)


@pytest.mark.parametrize(
    "mode, wanted",
    [("constant", [1, 2, 0, 0]), ("edge", [1, 2, 2, 2]), ("wrap", [1, 2, 1, 2]), ("reflect", [1, 2, 1, 2])],
)
def test_negative_pads_crop_first(mode: str, wanted: list[int]) -> None:
    """As in ONNX Runtime: what is extended is what is left."""
    x = np.arange(3, dtype=np.float32)
    graph, feeds = single("Pad", [x, ints(-1, 2)], constants=[1], like=[np.float32(wanted)], mode=mode)
    np.testing.assert_array_equal(interpret(lowered(graph), feeds)[graph.outputs[0]], wanted)


REFUSED = [
    ("Slice", [X, ints(0), ints(2), ints(0), ints(0)], X, {}, "a step of 0"),
    ("Slice", [X, ints(2), ints(2**31 - 1), ints(1), ints(-1)], X[:, :0], {}, "an end of INT_MAX for a step backward"),
    ("Tile", [X, ints(1, -1, 1)], X, {}, "expected 0 or more"),
    ("Reshape", [X, ints(5, 5)], np.zeros((5, 5), np.float32), {}, "has 24 elements"),
    ("Transpose", [X], X[:, 0, 0], {"perm": [0]}, "no order of 3 axes"),
    ("Transpose", [X], X[:, :, :2], {"perm": [0, 1, 1]}, "no order of 3 axes"),
    ("Expand", [X, ints(2, 5, 4)], np.zeros((2, 5, 4), np.float32), {}, "does not broadcast"),
    ("Expand", [X, ints(2, 2, 4)], X[:, :2], {}, "does not broadcast"),
    ("Split", [X, ints(1, 1)], X[:1], {}, "expected one for each output"),
    ("Pad", [X[:0], ints(1, 0, 0, 0, 0, 0)], X[:1], {"mode": "edge"}, "nothing to take values from"),
    ("Pad", [X, ints(0, 0, 0, 0, 0, 0)], X, {"mode": "mirror"}, "mode 'mirror'"),
]


@pytest.mark.parametrize("op_type, inputs, like, attributes, text", REFUSED, ids=[f"{r[0]}-{r[4]}" for r in REFUSED])
def test_refusals(op_type: str, inputs: list[Any], like: np.ndarray, attributes: dict[str, Any], text: str) -> None:
    graph, _ = single(op_type, inputs, constants=range(1, len(inputs)), like=[like], **attributes)
    assert text in str(ops.why_unsupported(graph, graph.operators()[0]))


def test_sparse_constants() -> None:
    from onnx import helper, numpy_helper

    from daceopt.ops.core.registry import constant_value

    values = numpy_helper.from_array(np.float32([5, 7]))
    for indices in (ints(1, 5), ints(0, 1, 1, 2).reshape(2, 2)):
        sparse = helper.make_sparse_tensor(values, numpy_helper.from_array(indices), [2, 3])
        np.testing.assert_array_equal(constant_value({"sparse_value": sparse}), [[0, 5, 0], [0, 0, 7]])


def test_older_forms_with_attributes() -> None:
    check("Unsqueeze", [X], opset=11, axes=[0, 2])
    check("Squeeze", [X[:, :1]], opset=11, axes=[1])
    check("Slice", [X], opset=9, starts=[1, -2], ends=[2, 1000], axes=[1, 2])
    check("Split", [X], outputs=2, opset=11, axis=1, split=[1, 2])


def test_split() -> None:
    check("Split", [X, ints(1, 3)], outputs=2, constants=[1], axis=2)
    check("Split", [X], outputs=2, axis=2, num_outputs=2)
    check("Split", [X], outputs=2, axis=-2, num_outputs=2)


def test_constant_of_shape_has_its_value() -> None:
    check("ConstantOfShape", [ints(2, 3)], constants=[0], value=_tensor([5], "int64"))


def _tensor(value: list[int], dtype: str) -> object:
    from onnx import numpy_helper

    return numpy_helper.from_array(np.array(value, dtype))


@pytest.mark.parametrize("index", [3, -4])
def test_indices_out_of_range_are_an_error(index: int) -> None:
    graph, _ = single("Gather", [X[0], ints(0, 1)], axis=0)
    with pytest.raises(IndexError):
        interpret(lowered(graph), {graph.inputs[0]: X[0], graph.inputs[1]: ints(1, index)})


@pytest.mark.parametrize("n", [0, 1, 3])
def test_parts_of_symbolic_extent_may_be_empty(n: int) -> None:
    graph, size = Graph("open"), dace.symbolic.symbol("n", dace.int64)
    x, y = graph.add_input("x", (size, 2), dace.float32), graph.add_input("y", (3, 2), dace.float32)
    graph.symbols["n"] = (x, 0)
    joined, padded = (graph.add_array(k, (size + 3, 2), dace.float32) for k in ("joined", "padded"))
    graph.add_operator("Concat", [x, y], [joined], {"axis": 0})
    graph.add_operator("Pad", [x, graph.add_constant("pads", ints(1, 0, 2, 0))], [padded])
    for name in (joined, padded):
        graph.add_output(name)
    feeds = {x: np.ones((n, 2), np.float32), y: X[0, :, :2]}
    found = interpret(lowered(graph), feeds)
    np.testing.assert_array_equal(found[joined], np.concatenate([feeds[x], feeds[y]]))
    np.testing.assert_array_equal(found[padded], np.pad(feeds[x], ((1, 2), (0, 0))))


def test_moves_are_views() -> None:
    """Everything that strides can say costs no kernel; only the final copy into the output stays."""
    for op_type, attributes in (("Transpose", {}), ("Flatten", {"axis": 2})):
        graph, _ = single(op_type, [X], **attributes)
        assert [k.label for k in lowered(graph).kernels()] == [op_type.lower()]


def test_shape_arithmetic_with_a_symbol() -> None:
    """Reshape(x, Concat(Shape(x)[0], -1)) for any batch: the integers need not be known when the graph is lowered."""
    size = dace.symbol("n", dace.int64)
    graph = Graph("symbolic")
    x = graph.add_input("x", (size, 3, 4), dace.float32)
    graph.symbols["n"] = (x, 0)
    shape = graph.add_array("shape", (3,), dace.int64)
    first = graph.add_array("first", (1,), dace.int64)
    target = graph.add_array("target", (2,), dace.int64)
    y = graph.add_array("y", (size, 12), dace.float32)
    z = graph.add_array("z", (size - 1, 12), dace.float32)
    graph.add_operator("Shape", [x], [shape])
    graph.add_operator("Gather", [shape, graph.add_constant("zero", ints(0))], [first])
    graph.add_operator("Concat", [first, graph.add_constant("rest", ints(-1))], [target], {"axis": 0})
    graph.add_operator("Reshape", [x, target], [y])
    graph.add_operator(
        "Slice", [y, graph.add_constant("from", ints(1)), first, graph.add_constant("axis", ints(0))], [z]
    )
    graph.add_output(z)
    for batch in (2, 5):
        value = np.random.default_rng(0).normal(size=(batch, 3, 4)).astype(np.float32)
        np.testing.assert_array_equal(interpret(lowered(graph), {x: value})[z], value.reshape(batch, 12)[1:])


def test_symbolic_batch_through_compute() -> None:
    size = dace.symbol("n", dace.int64)
    graph = Graph("symbolic")
    x = graph.add_input("x", (size, 6), dace.float32)
    graph.symbols["n"] = (x, 0)
    y, z = graph.add_array("y", (size, 6), dace.float32), graph.add_array("z", (6,), dace.float32)
    graph.add_operator("Softmax", [x], [y], {"axis": -1})
    graph.add_operator("ReduceMean", [y, graph.add_constant("axes", ints(0))], [z], {"keepdims": 0})
    graph.add_output(z)
    value = np.random.default_rng(0).normal(size=(7, 6)).astype(np.float32)
    weights = np.exp(value.astype(np.float64))
    expected = (weights / weights.sum(1, keepdims=True)).mean(0)
    np.testing.assert_allclose(interpret(lowered(graph), {x: value})[z], expected, rtol=1e-6)


def test_shape_operands_computed_at_run_time_say_why_not() -> None:
    graph, _ = single("Slice", [X, ints(1), ints(3), ints(2)], constants=[2, 3])
    assert "starts of Slice is computed at run time" in str(ops.why_unsupported(graph, graph.operators()[0]))
    graph, _ = single("Pad", [X, ints(0, 1, 2, 1, 0, 1)])
    assert "Pads of Pad is computed at run time" in str(ops.why_unsupported(graph, graph.operators()[0]))


@pytest.mark.parametrize("mode, theirs", [("reflect", "reflect"), ("edge", "replicate"), ("wrap", "circular")])
def test_gradient_of_pads_that_repeat(mode: str, theirs: str) -> None:
    from torch.nn import functional

    from tests.autodiff.checking import check as check_gradient
    from tests.ops.test_gradients import op

    pads = {1: ints(0, 0, 1, 2, 0, 0, 2, 1)}
    ours = op("Pad", (1, 2, 6, 7), pads, mode=mode)
    check_gradient(ours, lambda x: functional.pad(x, (2, 1, 1, 2), theirs), (1, 2, 3, 4))

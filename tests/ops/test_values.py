"""Shape arithmetic at compile time: what folds to numbers and sizes, and models that compute their own shapes."""

from __future__ import annotations

from typing import Any

import dace
import numpy as np
import pytest
import sympy
from onnx import TensorProto, helper, numpy_helper

import daceopt
from daceopt import ops
from daceopt.capture.onnx.file import load
from daceopt.capture.onnx.importer import import_model
from daceopt.ir.graph.graph import Graph
from daceopt.ir.interpreter.interpret import interpret
from daceopt.ir.scalar import types
from daceopt.ops.core import inference, values

N, M = dace.symbol("n", dace.int64), dace.symbol("m", dace.int64)


def ints(*elements: int) -> np.ndarray:
    return np.array(elements, np.int64)


class Shapes:
    """A graph over x of shape (n, m, 6), to which operators over its shape are added."""

    def __init__(self) -> None:
        self.graph = Graph("shapes")
        self.graph.source.opset[""] = 21
        self.x = self.graph.add_input("x", (N, M, 6), dace.float32)
        self.graph.symbols.update(n=(self.x, 0), m=(self.x, 1))
        self.shape = self.add("Shape", [self.x], (3,))

    def constant(self, value: Any) -> str:
        return self.graph.add_constant("c", np.asarray(value))

    def add(self, op_type: str, inputs: list[Any], extents: Any, dtype: str = "int64", **attributes: Any) -> str:
        names = [n if isinstance(n, str) else self.constant(n) for n in inputs]
        out = self.graph.add_array("y", extents, types.from_name(dtype))
        self.graph.add_operator(op_type, names, [out], attributes)
        return out

    def known(self, op_type: str, inputs: list[Any], extents: Any, **attributes: Any) -> Any:
        return values.known_elements(self.graph, self.add(op_type, inputs, extents, **attributes))


def test_arithmetic_on_sizes() -> None:
    s = Shapes()
    assert s.known("Add", [s.shape, ints(1)], (3,)) == (N + 1, M + 1, 7)
    assert s.known("Sub", [s.shape, s.shape], (3,)) == (0, 0, 0)
    assert s.known("Mul", [s.shape, ints(2, 3, 4)], (3,)) == (2 * N, 3 * M, 24)
    assert s.known("Div", [s.shape, ints(2)], (3,)) == (sympy.floor(N / 2), sympy.floor(M / 2), 3)
    assert s.known("Mod", [s.shape, ints(1, 1, 4)], (3,))[2] == 2
    assert s.known("Neg", [s.shape], (3,)) == (-N, -M, -6)
    assert s.known("Abs", [s.add("Neg", [s.shape], (3,))], (3,))[2] == 6
    assert s.known("Max", [s.shape, ints(0, -1, 9)], (3,)) == (N, M, 9)
    assert s.known("Min", [s.shape, ints(0)], (3,)) == (0, 0, 0)
    assert s.known("Div", [ints(-7, 7, 5), ints(2, -2, 3)], (3,)) == (-3, -3, 1)


def test_arithmetic_through_floats() -> None:
    """Sizes times a factor, as exporters write interpolation; fractions that floats do not hold stay unknown."""
    s = Shapes()
    real = s.add("Cast", [s.shape], (3,), "float32", to=TensorProto.FLOAT)
    for factor, wanted in ((2.0, (2 * N, 2 * M, 12)), (0.5, (sympy.floor(N / 2), sympy.floor(M / 2), 3)), (0.3, None)):
        scaled = s.add("Mul", [real, np.float32(factor)], (3,), "float32")
        down = s.add("Floor", [scaled], (3,), "float32")
        assert s.known("Cast", [down], (3,), to=TensorProto.INT64) == wanted
    up = s.add("Ceil", [s.add("Mul", [real, np.float32(0.5)], (3,), "float32")], (3,), "float32")
    assert s.known("Cast", [up], (3,), to=TensorProto.INT64)[2] == 3


def test_moving() -> None:
    s = Shapes()
    first = s.add("Gather", [s.shape, np.int64(-3)], (), axis=0)
    assert values.known_elements(s.graph, first) == (N,)
    assert s.known("Concat", [s.shape, ints(-1)], (4,), axis=0) == (N, M, 6, -1)
    assert s.known("Slice", [s.shape, ints(-1), ints(-10), ints(0), ints(-1)], (3,)) == (6, M, N)
    assert s.known("Slice", [s.shape, ints(1), ints(2**63 - 1)], (2,)) == (M, 6)
    assert s.known("Unsqueeze", [first, ints(0)], (1,)) == (N,)
    assert s.known("Expand", [first, ints(2, 2)], (2, 2)) == (N,) * 4
    assert s.known("Tile", [s.shape, ints(2)], (6,)) == (N, M, 6) * 2
    assert s.known("Transpose", [s.add("Reshape", [s.shape, ints(3, 1)], (3, 1))], (1, 3)) == (N, M, 6)
    assert s.known("Reshape", [s.shape, ints(1, 3)], (1, 3)) == (N, M, 6)
    assert s.known("ScatterND", [s.shape, [[1]], ints(7)], (3,)) == (N, 7, 6)
    assert s.known("ConstantOfShape", [ints(2)], (2,), value=numpy_helper.from_array(ints(5))) == (5, 5)
    assert s.known("Range", [ints(6)[0], np.int64(0), np.int64(-2)], (3,)) == (6, 4, 2)
    assert s.known("Size", [s.x], ()) == (6 * N * M,)


def test_choices_that_hold_for_all_sizes() -> None:
    s = Shapes()
    target = ints(-1, 4, 6)
    given = s.add("Equal", [target, ints(-1)], (3,), "bool")
    assert s.known("Where", [given, s.shape, target], (3,)) == (N, 4, 6)
    never = s.add("Equal", [s.shape, ints(-1)], (3,), "bool")
    assert s.known("Where", [never, ints(1, 1, 1), s.shape], (3,)) == (N, M, 6)
    perhaps = s.add("Equal", [s.shape, ints(1)], (3,), "bool")
    assert s.known("Where", [perhaps, ints(1, 1, 1), s.shape], (3,)) is None


@pytest.mark.parametrize(
    "op_type, wanted", [("ReduceProd", 6 * N * M), ("ReduceSum", N + M + 6), ("ReduceMax", None), ("ReduceMin", None)]
)
def test_reductions(op_type: str, wanted: Any) -> None:
    s = Shapes()
    (found,) = s.known(op_type, [s.shape], (), keepdims=0)
    if wanted is None:
        wanted = (sympy.Max if op_type == "ReduceMax" else sympy.Min)(N, M, 6)
    assert found == wanted


def test_numbers_without_a_rule_are_computed_by_the_reference() -> None:
    s = Shapes()
    assert s.known("CumSum", [ints(1, 2, 3), np.int64(0)], (3,)) == (1, 3, 6)
    assert s.known("CumSum", [s.shape, np.int64(0)], (3,)) is None
    assert values.constant(s.graph, s.add("Sqrt", [np.float32([4, 9])], (2,), "float32")).tolist() == [2, 3]  # type: ignore[union-attr]
    assert values.constant(s.graph, s.add("RandomNormal", [], (2,), "float32", shape=[2])) is None


def test_remainders_and_large_integers_are_exact() -> None:
    g = Shapes()
    big = 2**53 + 1
    a, b = g.constant(ints(-7, 7, big)), g.constant(ints(3, -3, 2))
    wanted = {"Mod": [2, -2, 1], "Add": [-4, 4, big + 2], "Mul": [-21, -21, 2 * big], "Div": [-2, -2, big // 2]}
    for op_type, value in wanted.items():
        assert values.known_elements(g.graph, g.add(op_type, [a, b], (3,))) == tuple(value)
    assert values.known_elements(g.graph, g.add("Mod", [a, b], (3,), fmod=1)) == (-1, 1, 1)


def test_data_and_large_arrays_are_not_known() -> None:
    s = Shapes()
    assert s.known("Cast", [s.add("NonZero", [s.x], (3, 1))], (3, 1), to=TensorProto.INT64) is None
    assert s.known("ConstantOfShape", [ints(100, 100)], (100, 100)) is None


# -------------------------------------------------------------------- shapes of results


def shape_of(s: Shapes, op_type: str, inputs: list[Any], **attributes: Any) -> Any:
    names = [n if isinstance(n, str) else s.constant(n) for n in inputs]
    return inference.result_shapes(s.graph, op_type, names, 1, attributes)[0]


def test_results_of_symbolic_shape() -> None:
    s = Shapes()
    first = s.add("Slice", [s.shape, ints(0), ints(1)], (1,))
    target = s.add("Concat", [first, ints(-1)], (2,), axis=0)
    assert shape_of(s, "Reshape", [s.x, target]) == (N, 6 * M)
    assert shape_of(s, "Reshape", [s.x, ints(0, 0, 2, 3)]) == (N, M, 2, 3)
    assert shape_of(s, "Expand", [np.zeros((1, 6), np.float32), s.shape]) == (N, M, 6)
    assert shape_of(s, "ConstantOfShape", [s.shape]) == (N, M, 6)
    assert shape_of(s, "Tile", [s.x, ints(1, 2, 3)]) == (N, 2 * M, 18)
    assert shape_of(s, "Pad", [s.x, ints(0, 1, 0, 0, 2, -1)]) == (N, M + 3, 5)
    assert shape_of(s, "Concat", [s.x, s.x], axis=1) == (N, 2 * M, 6)
    assert shape_of(s, "Flatten", [s.x]) == (N, 6 * M)
    assert shape_of(s, "Resize", [s.x, np.zeros(0, "f"), np.array([1, 2, 0.5], "f")]) == (N, 2 * M, 3)
    assert shape_of(s, "CenterCropPad", [s.x, ints(4)], axes=[2]) == (N, M, 4)
    assert shape_of(s, "MaxUnpool", [s.x, s.x, ints(1, 5, 9)], kernel_shape=[2]) == (1, 5, 9)
    assert shape_of(s, "Transpose", [s.x], perm=[2, 0, 1]) == (6, N, M)


def test_slices_of_symbolic_axes_stay_inside() -> None:
    """What lies outside for small sizes is not assumed away."""
    s = Shapes()
    cases = [((0, 2**63 - 1, 1), N), ((1, 2**63 - 1, 1), sympy.Max(N - 1, 0)), ((0, 3, 1), sympy.Min(N, 3)),
             ((0, 2**63 - 1, 2), -sympy.floor(-N / 2)), ((-1, -(2**63), -1), N)]  # fmt: skip
    for (start, end, step), wanted in cases:
        assert shape_of(s, "Slice", [s.x, ints(start), ints(end), ints(0), ints(step)])[0] == wanted
    by_size = s.add("Slice", [s.shape, ints(1), ints(2)], (1,))
    assert shape_of(s, "Slice", [s.x, ints(0), by_size, ints(1)]) == (N, M, 6)
    assert shape_of(s, "Slice", [s.x, ints(0), by_size, ints(0)]) == (sympy.Min(N, M), M, 6)


def test_a_slice_backward_from_before_the_array_takes_its_first_element() -> None:
    s = Shapes()
    assert shape_of(s, "Slice", [ints(1, 2, 3, 4), ints(-9), ints(-20), ints(0), ints(-1)]) == (1,)
    assert shape_of(s, "Slice", [ints(), ints(-9), ints(-20), ints(0), ints(-1)]) == (0,)


# -------------------------------------------------------------------- whole models


def transformer() -> Any:
    """Attention over (batch, time, 8) in two heads, with positions and a causal mask made from the input's shape."""
    rng = np.random.default_rng(0)
    weights = {"w": rng.normal(size=(8, 24)), "table": rng.normal(size=(16, 8))}
    numbers = {"zero": 0, "one": 1, "minus": -1, "two": 2, "four": 4, "eight": 8}
    lists = {"first": [0], "last": [-1], "thirds": [8, 8, 8]}
    given = [numpy_helper.from_array(v.astype(np.float32), k) for k, v in weights.items()]
    given += [numpy_helper.from_array(np.array(v, np.int64), k) for k, v in (numbers | lists).items()]
    given.append(numpy_helper.from_array(np.float32(-1e9), "low"))
    n = helper.make_node
    nodes = [
        n("Shape", ["x"], ["shape"]), n("Gather", ["shape", "zero"], ["b"]), n("Gather", ["shape", "one"], ["t"]),
        n("Range", ["zero", "t", "one"], ["places"]), n("Gather", ["table", "places"], ["positions"]),
        n("Add", ["x", "positions"], ["h"]), n("MatMul", ["h", "w"], ["qkv"]),
        n("Split", ["qkv", "thirds"], ["q", "k", "v"], axis=2),
        n("Unsqueeze", ["b", "first"], ["b1"]), n("Unsqueeze", ["t", "first"], ["t1"]),
        n("Unsqueeze", ["two", "first"], ["two1"]),
        n("Concat", ["b1", "t1", "two1", "last"], ["heads"], axis=0),
        n("Concat", ["b1", "t1", "last"], ["flat"], axis=0), n("Concat", ["t1", "t1"], ["square"], axis=0),
        n("ConstantOfShape", ["square"], ["zeros"]), n("Add", ["zeros", "low"], ["lows"]),
        n("Trilu", ["lows", "one"], ["mask"]),
    ]  # fmt: skip
    for name, perm in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
        nodes += [
            n("Reshape", [name, "heads"], [f"{name}4"]),
            n("Transpose", [f"{name}4"], [f"{name}h"], perm=perm),
        ]
    nodes += [
        n("MatMul", ["qh", "kh"], ["scores"]), n("Add", ["scores", "mask"], ["masked"]),
        n("Softmax", ["masked"], ["p"], axis=-1), n("MatMul", ["p", "vh"], ["mixed"]),
        n("Transpose", ["mixed"], ["back"], perm=[0, 2, 1, 3]), n("Reshape", ["back", "flat"], ["y"]),
    ]  # fmt: skip
    io = [helper.make_tensor_value_info(k, TensorProto.FLOAT, ["batch", "time", w]) for k, w in (("x", 8), ("y", None))]
    graph = helper.make_graph(nodes, "transformer", io[:1], io[1:], given)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_a_transformer_leaves_no_kernel_over_shapes() -> None:
    graph = import_model(load(transformer()))
    ops.lower_all(graph)
    graph.prune()
    written = {n: graph.dtype(n) for k in graph.kernels() for n in map(str, graph.outputs_of(k))}
    whole = [n for n, dtype in written.items() if types.is_integer(dtype)]
    assert [graph.shape(n) for n in whole] == [(graph.shape(graph.inputs[0])[1],)], "only the positions are integers"


def test_a_transformer_runs_for_any_batch_and_length() -> None:
    import onnxruntime

    model = transformer()
    theirs = onnxruntime.InferenceSession(model.SerializeToString())
    graph = import_model(load(model))
    for batch, time in ((1, 1), (3, 5)):
        x = np.random.default_rng(1).normal(size=(batch, time, 8)).astype(np.float32)
        (wanted,) = theirs.run(None, {"x": x})
        np.testing.assert_allclose(interpret(graph, {graph.inputs[0]: x})[graph.outputs[0]], wanted, atol=2e-5)


def test_bounded_extents_compile() -> None:
    """min and max of sizes reach the generated code: the last two and the first three rows of any number."""
    nodes = [
        helper.make_node("Slice", ["x", "minus_two", "far", "zero"], ["tail"]),
        helper.make_node("Slice", ["x", "zero", "three", "zero"], ["head"]),
        helper.make_node("Concat", ["tail", "head"], ["y"], axis=0),
    ]
    numbers = {"minus_two": -2, "far": 2**63 - 1, "zero": 0, "three": 3}
    graph = helper.make_graph(
        nodes,
        "bounded",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, 2])],
        [numpy_helper.from_array(ints(v), k) for k, v in numbers.items()],
    )
    run = daceopt.from_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), fallback=False)
    for rows in (4, 2, 1):
        x = np.arange(2 * rows, dtype=np.float32).reshape(rows, 2)
        np.testing.assert_array_equal(run(x), np.concatenate([x[-2:], x[:3]]))

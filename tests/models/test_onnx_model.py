"""``from_onnx``: sizes that are not known before running, fallbacks, element types."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from torch import nn

import daceopt
from daceopt import pipeline
from daceopt.errors import DaceoptError, FallbackWarning, Unsupported
from daceopt.libs.onnxruntime_model import RuntimeModel
from daceopt.models import variants
from daceopt.programs.tuning import search
from daceopt.programs.tuning.variations import variations
from daceopt.runtime.invocation import torch_dtype
from tests.numerics import assert_within_rounding
from tests.onnx_models import detector, proto


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


def reshaping() -> onnx.ModelProto:
    """y = relu(reshape(x, shape))"""
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["r"]), helper.make_node("Relu", ["r"], ["y"])]
    inputs = [("x", TensorProto.FLOAT, [12]), ("shape", TensorProto.INT64, [2])]
    return proto(nodes, inputs, [("y", TensorProto.FLOAT, ["rows", "columns"])])


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


@pytest.fixture
def compiled_models(monkeypatch: pytest.MonkeyPatch) -> list[onnx.ModelProto]:
    """The models that are compiled during the test."""
    found: list[onnx.ModelProto] = []
    original = pipeline.compile_model
    monkeypatch.setattr(pipeline, "compile_model", lambda model, **kw: found.append(model) or original(model, **kw))
    return found


@pytest.mark.parametrize("verify", [None, "numerics"])
def test_shapes_that_follow_from_an_input_are_compiled_for_each_of_its_values(
    verify: str | None, compiled_models: list[onnx.ModelProto]
) -> None:
    compiled = daceopt.from_onnx(reshaping(), recipe="none", fallback=False, verify=verify)
    with pytest.raises(DaceoptError, match="no compiled program yet.*first call"):
        _ = compiled.pair
    x = np.arange(-6, 6, dtype=np.float32)
    for shape in ((3, 4), (2, 6), (3, 4)):
        np.testing.assert_array_equal(compiled(x, ints(*shape)), np.maximum(x, 0).reshape(shape))
    assert len(compiled_models) == 1 + 2
    assert len(compiled.pair.forward.manifest.inputs) == 1


def test_a_shape_that_does_not_fit_is_an_error_of_that_call() -> None:
    compiled = daceopt.from_onnx(reshaping(), recipe="none", fallback=False)
    x = np.arange(12, dtype=np.float32)
    with pytest.raises(DaceoptError, match="12.*25"):
        compiled(x, ints(5, 5))
    assert compiled(x, ints(3, -1)).shape == (3, 4)


def test_threads_compile_each_program_once(compiled_models: list[onnx.ModelProto]) -> None:
    compiled = daceopt.from_onnx(reshaping(), recipe="none", fallback=False)
    x = np.arange(12, dtype=np.float32)
    shapes = [(3, 4), (2, 6)] * 8
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda shape: compiled(x, ints(*shape)), shapes))
    assert [r.shape for r in results] == shapes
    assert len(compiled_models) == 1 + 2


def test_only_the_latest_programs_are_kept(
    compiled_models: list[onnx.ModelProto], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(variants, "LIMIT", 1)
    compiled = daceopt.from_onnx(reshaping(), recipe="none", fallback=False)
    x = np.arange(12, dtype=np.float32)
    for shape in ((3, 4), (3, 4), (2, 6), (3, 4)):
        compiled(x, ints(*shape))
    assert len(compiled_models) == 1 + 3


def test_values_that_do_not_fit_and_values_that_are_data() -> None:
    nodes = [helper.make_node("Expand", ["x", "shape"], ["y"])]
    inputs = [("x", TensorProto.FLOAT, [3]), ("shape", TensorProto.INT64, ["rank"])]
    compiled = daceopt.from_onnx(proto(nodes, inputs, [("y", TensorProto.FLOAT, ["a", "b"])]), fallback=False)
    x = np.ones(3, np.float32)
    with pytest.raises(DaceoptError, match=r"does not fit these values.*'shape': \[2, 4\]"):
        compiled(x, ints(2, 4))
    with pytest.raises(Unsupported, match="input 'shape', which has 65 elements"):
        compiled(x, np.ones(65, np.int64))
    assert compiled(x, ints(2, 3)).shape == (2, 3)


def test_sizes_without_names_stay_open_as_those_with_names(compiled_models: list[onnx.ModelProto]) -> None:
    nodes = [helper.make_node("Add", ["x", "b"], ["y"])]
    inputs = [("x", TensorProto.FLOAT, [None, "n"]), ("b", TensorProto.FLOAT, ["n"])]
    compiled = daceopt.from_onnx(
        proto(nodes, inputs, [("y", TensorProto.FLOAT, [None, "n"])]), recipe="none", fallback=False
    )
    for rows, columns in ((2, 3), (2, 5), (4, 3)):
        assert compiled(np.ones((rows, columns), np.float32), np.ones(columns, np.float32)).shape == (rows, columns)
    assert len(compiled_models) == 1
    with pytest.raises(DaceoptError, match="input 'b', axis 0: expected n = 3, got 2"):
        compiled(np.ones((2, 3), np.float32), np.ones(2, np.float32))


def test_shape_arithmetic_is_folded() -> None:
    """y = expand(o, int(shape(x) * k)), whose arithmetic passes through floats"""
    nodes = [helper.make_node("Shape", ["x"], ["s"]), helper.make_node("Cast", ["s"], ["f"], to=TensorProto.FLOAT)]
    nodes += [helper.make_node("Mul", ["f", "k"], ["g"]), helper.make_node("Cast", ["g"], ["h"], to=TensorProto.INT64)]
    nodes += [helper.make_node("Expand", ["o", "h"], ["y"])]
    inputs = [("x", TensorProto.FLOAT, ["a", "b"]), ("k", TensorProto.FLOAT, [2]), ("o", TensorProto.FLOAT, [1, 1])]
    compiled = daceopt.from_onnx(proto(nodes, inputs, [("y", TensorProto.FLOAT, [None, None])]), fallback=False)
    k, one = np.array([2, 0.5], np.float32), np.ones((1, 1), np.float32)
    assert compiled(np.ones((2, 6), np.float32), k, one).shape == (4, 3)
    assert compiled(np.ones((3, 4), np.float32), k, one).shape == (6, 2)


def test_branches_whose_condition_follows_from_an_input() -> None:
    """y = x * 2 in a row where n is 1, else a square of them"""
    row = helper.make_node("Reshape", ["x", "flat"], ["a"]), helper.make_node("Add", ["a", "a"], ["r"])
    then = helper.make_graph(row, "then", [], [helper.make_tensor_value_info("r", TensorProto.FLOAT, [1, 4])])
    square = [helper.make_node("Reshape", ["x", "two"], ["s"])]
    other = helper.make_graph(square, "else", [], [helper.make_tensor_value_info("s", TensorProto.FLOAT, [2, 2])])
    nodes = [helper.make_node("Constant", [], ["one"], value_int=1), helper.make_node("Equal", ["n", "one"], ["c"])]
    nodes += [helper.make_node("Constant", [], ["flat"], value_ints=[1, 4])]
    nodes += [helper.make_node("Constant", [], ["two"], value_ints=[2, 2])]
    nodes += [helper.make_node("If", ["c"], ["z"], then_branch=then, else_branch=other)]
    nodes += [helper.make_node("Relu", ["z"], ["y"])]
    inputs = [("x", TensorProto.FLOAT, [4]), ("n", TensorProto.INT64, [])]
    model = proto(nodes, inputs, [("y", TensorProto.FLOAT, [None, None])])
    compiled = daceopt.from_onnx(model, recipe="none", fallback=False)
    x = np.arange(4, dtype=np.float32)
    assert compiled(x, np.int64(1)).tolist() == [(x * 2).tolist()]
    assert compiled(x, np.int64(2)).tolist() == x.reshape(2, 2).tolist()


def test_the_first_call_of_each_program_looks_for_the_fastest(
    monkeypatch: pytest.MonkeyPatch, fresh_cache: Path, compiled_models: list[onnx.ModelProto]
) -> None:
    monkeypatch.setenv("DACEOPT_CACHE_DIR", str(fresh_cache))
    monkeypatch.setattr(search, "variations", lambda recipe: variations(recipe)[:1])
    x = np.arange(12, dtype=np.float32) - 6
    for _ in range(2):  # as another process would
        model = daceopt.from_onnx(reshaping(), recipe="cpu", fallback=False, tune="60s")
        for shape in ((3, 4), (2, 6), (3, 4)):
            assert np.array_equal(model(x, ints(*shape)), np.maximum(x, 0).reshape(shape))
        assert [len(f.trials) for f in model.stats.tuning] == [2, 2] and len(model.stats.choices) == 2
    asked, compiled, searched, taken = 2, 4, 4, 4  # of both models: what sizes there are; two programs each
    assert len(compiled_models) == asked + compiled + searched + taken
    with pytest.raises(ValueError, match="expected None, True, a number of seconds"):
        daceopt.from_onnx(reshaping(), tune="soon")


def test_a_call_that_is_an_error_is_one_while_the_fastest_is_looked_for_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the next call is looked at."""
    monkeypatch.setattr(search, "variations", lambda recipe: [])
    inputs = [("x", TensorProto.FLOAT, [5]), ("k", TensorProto.INT64, [2])]
    nodes = [helper.make_node("Gather", ["x", "k"], ["y"])]
    model = daceopt.from_onnx(proto(nodes, inputs, [("y", TensorProto.FLOAT, [2])]), recipe="cpu", tune="60s")
    x = np.arange(5, dtype=np.float32)
    with pytest.raises(IndexError, match="Gather"):
        model(x, ints(1, 9))
    assert not model.stats.tuning
    assert np.array_equal(model(x, ints(1, 4)), [1, 4]) and len(model.stats.tuning) == 1


def open_ended() -> onnx.ModelProto:
    return proto(
        [helper.make_node("NonZero", ["x"], ["y"])],
        [("x", TensorProto.FLOAT, [4])],
        [("y", TensorProto.INT64, [1, "count"])],
    )


def test_sizes_that_depend_on_data_are_refused_at_once_or_run_in_onnx_runtime() -> None:
    with pytest.raises(Unsupported, match="result of NonZero is depends on the data"):
        daceopt.from_onnx(open_ended(), fallback=False)
    with pytest.warns(FallbackWarning, match="the model runs in ONNX Runtime: .*NonZero") as caught:
        compiled = daceopt.from_onnx(open_ended())
    assert [w.filename for w in caught] == [__file__]
    x = np.array([0, 1, 0, 2], np.float32)
    np.testing.assert_array_equal(compiled(x), [[1, 3]])
    assert torch.equal(compiled(torch.from_numpy(x)), torch.tensor([[1, 3]]))
    with pytest.raises(DaceoptError, match="runs in ONNX Runtime"):
        _ = compiled.pair


def test_with_a_fallback_a_fault_of_ours_is_announced_and_costs_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **options: object) -> None:
        raise ZeroDivisionError("here")

    model = proto([helper.make_node("Relu", ["x"], ["y"])], [("x", 1, [2])], [("y", 1, [2])])
    monkeypatch.setattr(pipeline, "compile_model", fail)
    with pytest.raises(ZeroDivisionError):
        daceopt.from_onnx(model, fallback=False)
    with pytest.warns(FallbackWarning, match="ONNX Runtime: ZeroDivisionError: here"):
        compiled = daceopt.from_onnx(model)
    assert compiled(np.array([-1, 1], np.float32)).tolist() == [0, 1]


def test_wrong_inputs_are_errors_with_a_fallback_too() -> None:
    nodes = [helper.make_node("Expand", ["x", "shape"], ["y"])]
    inputs = [("x", TensorProto.FLOAT, [3]), ("shape", TensorProto.INT64, ["rank"])]
    compiled = daceopt.from_onnx(proto(nodes, inputs, [("y", TensorProto.FLOAT, ["a", "b"])]))
    with pytest.raises(DaceoptError, match="does not fit these values"):
        compiled(np.ones(3, np.float32), ints(2, 4))
    with pytest.warns(FallbackWarning, match="65 elements"), pytest.raises(DaceoptError, match="ONNX Runtime"):
        compiled(np.ones(3, np.float32), np.full(65, 7, np.int64))
    gather = proto([helper.make_node("Gather", ["x", "i"], ["y"])], [("x", 1, [3]), ("i", 7, [1])], [("y", 1, [1])])
    with pytest.raises(IndexError):
        daceopt.from_onnx(gather)(np.ones(3, np.float32), ints(5))


def test_text_and_sequences_run_in_onnx_runtime() -> None:
    model = proto(
        [helper.make_node("StringConcat", ["x", "x"], ["y"])],
        [("x", TensorProto.STRING, [2])],
        [("y", TensorProto.STRING, [2])],
    )
    with pytest.warns(FallbackWarning, match="STRING"):
        compiled = daceopt.from_onnx(model)
    assert compiled(np.array(["a", "b"])).tolist() == ["aa", "bb"]
    joined = helper.make_node("ConcatFromSequence", ["s"], ["y"], axis=0)
    sequence = helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, [2])
    graph = helper.make_graph(
        [joined], "g", [sequence], [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None])]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    with pytest.warns(FallbackWarning, match="'s' is no tensor but a sequence"):
        compiled = daceopt.from_onnx(model)
    part = np.ones(2, np.float32)
    assert compiled([part, part]).shape == (4,)


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float8_e4m3fn", "int4", "uint4", "float4_e2m1fn"])
def test_narrow_types(name: str) -> None:
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(getattr(ml_dtypes, name, name)))
    shape = [("x", kind, [3])], [("y", kind, [3])]
    compiled = daceopt.from_onnx(proto([helper.make_node("Identity", ["x"], ["y"])], *shape, opset=23), fallback=False)
    x = np.array([1, 2, 0]).astype(getattr(ml_dtypes, name, name))
    found = compiled(x)
    assert found.dtype == x.dtype and found.tolist() == x.tolist()
    with pytest.raises(DaceoptError, match=f"expected [a-z.]*{name} of shape .*got torch.float64"):
        compiled(np.zeros(3))
    stored = compiled(torch.zeros(3, dtype=torch_dtype(name)))
    assert stored.dtype == torch_dtype(name)


def test_bfloat16_in_onnx_runtime() -> None:
    kind = TensorProto.BFLOAT16
    model = proto([helper.make_node("Identity", ["x"], ["y"])], [("x", kind, [3])], [("y", kind, [3])])
    session = RuntimeModel(model)
    x = np.array([1, 2, 3]).astype(ml_dtypes.bfloat16)
    assert session.run([x])[0].tolist() == [1, 2, 3]
    with pytest.raises(DaceoptError, match="expected an array of bfloat16"):
        session.run([np.zeros(3, np.float32)])


# -------------------------------------------------------------------- in two parts


def image(seed: int, batch: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((batch, 3, 32, 32)).astype(np.float32)


@pytest.mark.parametrize("batch", [1, "batch", None])
def test_the_body_of_a_detector_is_compiled(batch: int | str | None) -> None:
    model = detector(batch)
    reference = RuntimeModel(model)
    with pytest.warns(FallbackWarning, match="end of the model, 4 of its operators.*NonMaxSuppression") as caught:
        compiled = daceopt.from_onnx(model)
        found = [compiled(image(seed)) for seed in range(3)]
    assert [w.filename for w in caught] == [__file__]
    for seed, outputs in enumerate(found):
        for ours, theirs in zip(outputs, reference.run([image(seed)]), strict=True):
            assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    assert len({outputs[1].shape for outputs in found}) > 1, "the number of boxes depends on the image"
    assert len(compiled.pair.forward.manifest.kernels) > 3
    fallbacks = compiled.pair.report["fallbacks"]
    assert set(fallbacks) == {"NonMaxSuppression", "Gather", "Squeeze"}
    assert "depends on the data" in fallbacks["NonMaxSuppression"]
    kept, selected, scores = compiled(torch.from_numpy(image(0)))
    assert all(isinstance(v, torch.Tensor) for v in (kept, selected, scores))
    np.testing.assert_array_equal(selected, found[0][1])


def test_a_model_in_two_parts_refuses_what_a_whole_one_does() -> None:
    with pytest.raises(Unsupported, match="how long the result of NonMaxSuppression is depends on the data"):
        daceopt.from_onnx(detector(), fallback=False)
    with pytest.warns(FallbackWarning, match="NonMaxSuppression"):
        compiled = daceopt.from_onnx(detector("batch"))
    with pytest.raises(DaceoptError, match="input 'image', axis 2: expected 32, got 31"):
        compiled(image(0)[:, :, 1:])
    with pytest.raises(DaceoptError, match="expected torch.float32 of shape"):
        compiled(image(0).astype(np.float64))


@pytest.mark.filterwarnings("ignore::daceopt.errors.FallbackWarning")
def test_threads_share_both_parts() -> None:
    compiled = daceopt.from_onnx(detector("batch"))
    expected = [compiled(image(seed)) for seed in range(4)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda seed: compiled(image(seed % 4)), range(16)))
    for k, outputs in enumerate(found):
        for ours, theirs in zip(outputs, expected[k % 4], strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_a_program_for_each_shape_with_a_tail_of_its_own(compiled_models: list[onnx.ModelProto]) -> None:
    """y = the places of reshape(x @ w, shape) that are not 0"""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Reshape", ["h", "shape"], ["r"])]
    nodes += [helper.make_node("NonZero", ["r"], ["places"]), helper.make_node("GatherND", ["shape", "one"], ["n"])]
    nodes += [helper.make_node("Add", ["places", "n"], ["y"])]
    constants = {"w": np.eye(12, dtype=np.float32), "one": ints(1)}
    inputs = [("x", TensorProto.FLOAT, [12, 12]), ("shape", TensorProto.INT64, [2])]
    model = proto(nodes, inputs, [("y", TensorProto.INT64, [2, "count"])], constants=constants)
    reference = RuntimeModel(model)
    compiled = daceopt.from_onnx(model, recipe="none")
    x = np.random.default_rng(0).integers(0, 2, (12, 12)).astype(np.float32)
    with pytest.warns(FallbackWarning, match="NonZero") as caught:
        for shape in ((12, 12), (6, 24), (12, 12)):
            np.testing.assert_array_equal(compiled(x, ints(*shape)), reference.run([x, ints(*shape)])[0])
    assert len(caught) == 1 and len(compiled.pair.forward.manifest.kernels) > 0
    assert len(compiled_models) == 1 + 2 * 2, "at first; then the whole, and its native part, for each shape"


def classifier() -> onnx.ModelProto:
    """The names of the best classes, after a prefix, and the scores."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["scores"]), helper.make_node("ArgMax", ["scores"], ["b"], axis=1)]
    nodes += [helper.make_node("Gather", ["labels", "b"], ["label"])]
    nodes += [helper.make_node("StringConcat", ["prefix", "label"], ["y"])]
    constants = {"w": np.eye(16, dtype=np.float32), "labels": np.array([f"class {k}" for k in range(16)], object)}
    inputs = [("prefix", TensorProto.STRING, [1]), ("x", TensorProto.FLOAT, ["n", 16])]
    outputs = [("y", TensorProto.STRING, ["n", 1]), ("scores", TensorProto.FLOAT, ["n", 16])]
    return proto(nodes, inputs, outputs, constants=constants)


def test_labels_after_a_compiled_body() -> None:
    with pytest.warns(FallbackWarning, match="Gather: constant 'labels' is text.*StringConcat.*'prefix'"):
        compiled = daceopt.from_onnx(classifier())
    x = np.eye(16, dtype=np.float32)[[3, 7]]
    labels, scores = compiled(np.array(["a "]), x)
    assert labels.tolist() == [["a class 3"], ["a class 7"]]
    np.testing.assert_array_equal(scores, x)
    labels, scores = compiled(prefix=["b "], x=torch.from_numpy(x))
    assert labels[0, 0] == "b class 3" and isinstance(scores, torch.Tensor)
    with pytest.raises(DaceoptError, match="ONNX Runtime"):
        compiled(np.ones(1, np.float32), x)


def test_a_sequence_passes_by_the_compiled_body() -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("SequenceInsert", ["s", "h"], ["t"])]
    nodes += [helper.make_node("ConcatFromSequence", ["t"], ["y"], axis=0)]
    model = proto(nodes, [("x", 1, [4, 16])], [("y", 1, ["n", 16])], constants={"w": np.eye(16, dtype=np.float32)})
    model.graph.input.append(helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, None))
    with pytest.warns(FallbackWarning, match="SequenceInsert"):
        compiled = daceopt.from_onnx(model)
    x = np.ones((4, 16), np.float32)
    np.testing.assert_array_equal(compiled(x, [2 * x, 3 * x]), np.concatenate([2 * x, 3 * x, x]))
    assert compiled(x, []).shape == (4, 16)


@pytest.mark.parametrize("kind", [np.float16, np.float64])
def test_types_of_what_is_handed_over(kind: type) -> None:
    """y = the elements of x @ w that are more than a half, in order: numbers and truth values go to the tail"""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Greater", ["h", "half"], ["g"])]
    nodes += [helper.make_node("Reshape", ["g", "flat"], ["c"]), helper.make_node("Compress", ["h", "c"], ["y"])]
    constants = {"w": np.eye(16, dtype=kind), "half": np.array(0.5, kind), "flat": ints(-1)}
    number = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    model = proto(nodes, [("x", number, ["n", 16])], [("y", number, ["count"])], constants=constants)
    with pytest.warns(FallbackWarning, match="1 of its operators.*Compress"):
        compiled = daceopt.from_onnx(model)
    x = np.random.default_rng(0).random((5, 16)).astype(kind)
    found = compiled(x)
    assert found.dtype == kind and np.array_equal(found, x[x > 0.5])
    assert torch.equal(compiled(torch.from_numpy(x)), torch.from_numpy(found))


def test_what_is_no_work_runs_with_the_rest_in_onnx_runtime() -> None:
    nodes = [helper.make_node("Add", ["x", "x"], ["a"]), helper.make_node("NonZero", ["a"], ["y"])]
    model = proto(nodes, [("x", TensorProto.FLOAT, [200])], [("y", TensorProto.INT64, [1, "count"])])
    with pytest.warns(FallbackWarning, match="the model runs in ONNX Runtime.*NonZero"):
        compiled = daceopt.from_onnx(model)
    assert compiled(np.ones(200, np.float32)).shape == (1, 200)


def test_a_native_part_that_fails_costs_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    original = pipeline.compile_model

    def compile_model(model: onnx.ModelProto, **options: object) -> object:
        if any(n.op_type == "NonMaxSuppression" for n in model.graph.node):
            return original(model, **options)
        raise Unsupported("a part")

    monkeypatch.setattr(pipeline, "compile_model", compile_model)
    with pytest.warns(FallbackWarning, match="the model runs in ONNX Runtime: a part"):
        compiled = daceopt.from_onnx(detector())
    assert compiled(image(0))[2].shape == (1, 2, 64)

"""Hostile and damaged ONNX files: each is a ``ModelFileError`` that says what is wrong, or loads."""

from __future__ import annotations

import random

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from daceopt.capture.onnx.file import initializers, load
from daceopt.errors import ModelFileError


def value(name, shape=(2, 3), dtype=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, dtype, shape)


def model(nodes=None, tensors=None, inputs=None, opset=17, result=("a", "b"), **options):
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])] if nodes is None else nodes
    tensors = [numpy_helper.from_array(np.ones((3, 4), np.float32), "w")] if tensors is None else tensors
    graph = helper.make_graph(nodes, "g", inputs or [value("x")], [value("y", result)], tensors)
    options.setdefault("ir_version", 8)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], **options)


def external(location, **extra):
    built = model()
    tensor = built.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, text in {"location": location, **extra}.items():
        tensor.external_data.add(key=key, value=text)
    return built


def test_loads_path_bytes_and_model(tmp_path):
    built = model()
    path = tmp_path / "m.onnx"
    onnx.save(built, path)
    before = built.SerializeToString()
    for source in (path, str(path), built.SerializeToString(), built):
        loaded = load(source)
        assert [d.dim_value for d in loaded.graph.output[0].type.tensor_type.shape.dim] == [2, 4]
    assert built.SerializeToString() == before
    assert initializers(loaded)["w"].shape == (3, 4)


@pytest.mark.parametrize("opset", [6, 17])
def test_what_inference_finds_need_not_be_declared(opset):
    built = model(opset=opset)
    built.graph.output[0].type.tensor_type.ClearField("shape")
    built.graph.name = ""
    found = load(built).graph.output[0].type.tensor_type
    assert [d.dim_value for d in found.shape.dim] == [2, 4]


def test_element_types_survive():
    arrays = {"a": np.arange(3).astype(ml_dtypes.bfloat16), "b": np.arange(3, dtype=np.float16), "c": np.array([True])}
    nodes = [helper.make_node("Identity", ["x"], ["y"])]
    loaded = load(model(nodes, [numpy_helper.from_array(a, n) for n, a in arrays.items()]))
    for name, array in initializers(loaded).items():
        assert array.dtype == arrays[name].dtype
        np.testing.assert_array_equal(array, arrays[name])


@pytest.mark.parametrize("raw", [True, False])
@pytest.mark.parametrize("name", "int4 uint4 int2 uint2 float4_e2m1fn float6_e2m3fn float8_e8m0fnu".split())
def test_types_of_a_byte_or_less(name, raw):
    array = np.array([1, 0.5 if "float" in name else 0, 1]).astype(getattr(ml_dtypes, name))
    kind = helper.np_dtype_to_tensor_dtype(array.dtype)
    numbers = array.astype(np.float32)
    stored = numpy_helper.from_array(array, "w") if raw else helper.make_tensor("w", kind, [3], numbers)
    newest = {"opset": onnx.defs.onnx_opset_version(), "ir_version": onnx.IR_VERSION}
    built = model([helper.make_node("Cast", ["w"], ["y"], to=kind)], [stored], result=(3,), **newest)
    built.graph.output[0].type.tensor_type.elem_type = kind
    assert initializers(load(built))["w"].astype(float).tolist() == array.astype(float).tolist()
    stored.dims[0] = 50
    with pytest.raises(ModelFileError, match="declares shape"):
        built.graph.initializer[0].CopyFrom(stored)
        load(built)


def test_sparse_initializer_is_dense():
    built = model()
    values = numpy_helper.from_array(np.array([2.0, 3.0], np.float32), "w")
    indices = numpy_helper.from_array(np.array([1, 6], np.int64), "w_indices")
    del built.graph.initializer[:]
    built.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [3, 4]))
    dense = initializers(load(built))["w"]
    assert (dense[0, 1], dense[1, 2], dense.sum()) == (2, 3, 5)


def test_subgraphs_load():
    branch = helper.make_graph([helper.make_node("Neg", ["x"], ["z"])], "b", [], [value("z")])
    node = helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)
    load(model([node], [], [value("c", (), TensorProto.BOOL), value("x")]))


def test_old_opset_is_converted():
    nodes = [helper.make_node("Add", ["x", "w"], ["y"], broadcast=1)]
    tensors = [numpy_helper.from_array(np.ones(3, np.float32), "w")]
    loaded = load(model(nodes, tensors, opset=6, result=(2, 3), inputs=[value("x"), value("w", (3,))]))
    assert loaded.opset_import[0].version == 7
    assert not loaded.graph.node[-1].attribute


def test_opsets_from_seven_on_stay_as_they_are():
    nodes = [helper.make_node("Squeeze", ["x"], ["y"], axes=[0])]
    loaded = load(model(nodes, [], [value("x", (1, 3))], opset=7, result=("a",)))
    assert loaded.opset_import[0].version == 7 and len(loaded.graph.node[-1].input) == 1


def test_old_slopes_belong_to_the_channels():
    tensors = [numpy_helper.from_array(np.ones(3, np.float32), "w")]
    inputs = [value("x", (2, 3, 4, 5)), value("w", (3,))]
    built = model([helper.make_node("PRelu", ["x", "w"], ["y"])], tensors, inputs, opset=6, result=(2, 3, 4, 5))
    loaded = load(built)
    shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in loaded.graph.value_info}
    assert shapes[loaded.graph.node[-1].input[1]] == [3, 1, 1]


def test_attributes_that_a_function_body_expects():
    built = model([helper.make_node("MeanVarianceNormalization", ["x"], ["y"])], [], [value("x", (2, 3, 4, 5))])
    built.opset_import[0].version = 13
    del built.graph.output[0].type.tensor_type.shape.dim[:]
    built.graph.output[0].type.CopyFrom(built.graph.input[0].type)
    assert [a.name for a in load(built).graph.node[0].attribute] == ["axes"]


def test_a_model_of_another_domain_only():
    nodes = [helper.make_node("Binarizer", ["x"], ["y"], domain="ai.onnx.ml")]
    built = model(nodes, [], result=(2, 3))
    built.opset_import[0].domain, built.opset_import[0].version = "ai.onnx.ml", 1
    assert {o.domain for o in load(built).opset_import} == {"", "ai.onnx.ml"}


def test_what_cannot_be_converted_says_why():
    nodes = [helper.make_node("Pad", ["x"], ["y"], paddings=[0, 0, 1, 1])]
    with pytest.raises(ModelFileError, match="opset 1 cannot be converted to 7: .*Pad"):
        load(model(nodes, [], [value("x")], opset=1, result=(3, 4)))


def deep():
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["z"])], "b", [], [value("z")])
    for _ in range(25):
        graph = helper.make_graph([helper.make_node("Outer", ["x"], ["z"], body=graph)], "b", [], [value("z")])
    return model([helper.make_node("Outer", ["x"], ["y"], body=graph)], [])


def tensor(dims, data_type=TensorProto.FLOAT, raw=b""):
    found = TensorProto(name="w", dims=dims, data_type=data_type)
    found.raw_data = raw
    return found


def with_domain(version):
    built = model()
    built.opset_import[0].version = version
    return built


HOSTILE = {
    "empty file": (lambda: b"", "is empty"),
    "text": (lambda: b"this is not a model at all, it is a sentence", "truncated, damaged"),
    "truncated": (lambda: model().SerializeToString()[:-7], "truncated"),
    "no graph": (lambda: onnx.ModelProto(ir_version=8), "holds no graph"),
    "empty graph": (lambda: model([], []), "graph is empty"),
    "missing tensor": (lambda: model(tensors=[]), "checker.*'w'"),
    "unknown operator": (lambda: model([helper.make_node("NoSuchOp", ["x"], ["y"])], []), "NoSuchOp"),
    "shapes do not fit": (
        lambda: model(tensors=[numpy_helper.from_array(np.ones((4, 4), np.float32), "w")]),
        "fit together",
    ),
    "future opset": (lambda: with_domain(999), "opset 999"),
    "no opset": (lambda: with_domain(0), "opset 0"),
    "future ir": (lambda: model(ir_version=999), "IR version 999"),
    "huge extent": (lambda: model(tensors=[tensor([1 << 40, 1 << 10])]), "more than 1024 GiB"),
    "int64 overflow": (lambda: model(tensors=[tensor([1 << 62, 1 << 62, 4])]), "more than 1024 GiB"),
    "huge input": (lambda: model(inputs=[value("x", (1 << 60, 3))]), "more than 1024 GiB"),
    "negative extent": (lambda: model(tensors=[tensor([-3, 4])]), "negative extent"),
    "fewer bytes than declared": (lambda: model(tensors=[tensor([3, 4], raw=b"\0" * 40)]), r"48 bytes, but 40"),
    "unknown element type": (lambda: model(tensors=[tensor([3, 4], 77, b"\0" * 48)]), "element type 77"),
    "deep nesting": (deep, "nested|truncated"),
    "external without folder": (lambda: external("w.bin"), "pass the path"),
    "constant asks for a huge result": (
        lambda: model(
            [helper.make_node("ConstantOfShape", ["s"], ["y"])],
            [numpy_helper.from_array(np.array([1 << 50], np.int64), "s")],
            result=("a",),
        ),
        "more than 1024 GiB",
    ),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_model_is_refused(kind):
    make, reason = HOSTILE[kind]
    built = make()
    with pytest.raises(ModelFileError, match=f"(?s){reason}"):
        load(built if isinstance(built, bytes) else built.SerializeToString())


def test_unreadable_paths(tmp_path):
    for path in (tmp_path / "none.onnx", tmp_path, "bad\0name"):
        with pytest.raises(ModelFileError, match="cannot be read"):
            load(path)


def test_text_that_is_not_utf8():
    data = model(producer_name="producer").SerializeToString().replace(b"producer", b"prod\xff\xfeer")
    with pytest.raises(ModelFileError, match="UTF-8"):
        load(data)


def test_external_data_inside_the_folder(tmp_path):
    weights = np.arange(12, dtype=np.float32).reshape(3, 4)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "w.bin").write_bytes(b"\0" * 8 + weights.tobytes())
    onnx.save(external("sub/w.bin", offset="8", length="48"), tmp_path / "m.onnx")
    np.testing.assert_array_equal(initializers(load(tmp_path / "m.onnx"))["w"], weights)


@pytest.mark.parametrize(
    ("location", "extra", "reason"),
    [
        ("../secret.bin", {}, "inside the model's folder"),
        ("a/../../secret.bin", {}, "inside the model's folder"),
        ("..\\secret.bin", {}, "inside the model's folder"),
        ("/etc/passwd", {}, "inside the model's folder"),
        ("C:\\secret.bin", {}, "inside the model's folder"),
        ("", {}, "inside the model's folder"),
        ("link.bin", {}, "outside the model's folder"),
        ("folder_link/secret.bin", {}, "outside the model's folder"),
        ("missing.bin", {}, "is missing"),
        ("w\0.bin", {}, "is missing"),
        (".", {}, "not a regular file"),
        ("short.bin", {}, "truncated"),
        ("short.bin", {"offset": "9223372036854775807"}, "truncated"),
        ("short.bin", {"offset": "-4"}, "number of bytes"),
        ("short.bin", {"length": "99999999999"}, "takes 48 bytes"),
    ],
)
def test_external_data_is_confined(tmp_path, location, extra, reason):
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "secret.bin").write_bytes(b"\0" * 48)
    (folder / "link.bin").symlink_to(tmp_path / "secret.bin")
    (folder / "folder_link").symlink_to(tmp_path)
    (folder / "short.bin").write_bytes(b"\0" * 47)
    (folder / "m.onnx").write_bytes(external(location, **extra).SerializeToString())
    with pytest.raises(ModelFileError, match=reason):
        load(folder / "m.onnx")


def test_flipped_bits_load_or_are_refused():
    data = model().SerializeToString()
    generator = random.Random(0)
    refused = 0
    for _ in range(120):
        damaged = bytearray(data)
        damaged[generator.randrange(len(data))] ^= 1 << generator.randrange(8)
        try:
            load(bytes(damaged))
        except ModelFileError:
            refused += 1
    assert 20 < refused < 120


@pytest.mark.parametrize(
    "op_type, attribute, value",
    [("GatherND", "batch_dims", -9), ("LayerNormalization", "axis", 2**31), ("LayerNormalization", "axis", 2**63 - 1)],
)
def test_attributes_that_end_the_process_in_the_standards_inference(op_type, attribute, value):
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, (2, 3))
    i = helper.make_tensor_value_info("i", TensorProto.INT64 if op_type == "GatherND" else TensorProto.FLOAT, (2, 3))
    node = helper.make_node(op_type, ["x", "i"], ["y"], **{attribute: value})
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, (2, 3))
    graph = helper.make_graph([node], "g", [x, i], [y])
    with pytest.raises(ModelFileError, match=f"{op_type} '' has {attribute} {value}"):
        load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))


def test_a_split_with_more_results_than_it_says():
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, (6,))
    parts = [helper.make_tensor_value_info(n, TensorProto.FLOAT, (2,)) for n in "abc"]
    graph = helper.make_graph([helper.make_node("Split", ["x"], list("abc"), num_outputs=2)], "g", [x], parts)
    with pytest.raises(ModelFileError, match="Split '' has 3 results, its num_outputs 2"):
        load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10))


def calling(name, *calls):
    """A function of one operand that goes through ``calls``, one after the other."""
    nodes = [helper.make_node(c, [f"v{k}"], [f"v{k + 1}"], domain="own") for k, c in enumerate(calls)]
    nodes = nodes or [helper.make_node("Abs", ["v0"], ["v1"])]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    return helper.make_function("own", name, ["v0"], list(nodes[-1].output), nodes, opsets)


@pytest.mark.parametrize(
    ("functions", "message"),
    [
        ([calling("F0"), *(calling(f"F{k + 1}", f"F{k}", f"F{k}") for k in range(40))], "stand for .* nodes"),
        ([calling("F40", "F1"), calling("F1", "F40")], "'F(1|40)' calls itself"),
    ],
)
def test_functions_that_call_functions_without_end(functions, message):
    built = model([helper.make_node("F40", ["x"], ["y"], domain="own")], [], result=(2, 3), functions=functions)
    built.opset_import.add(domain="own", version=1)
    with pytest.raises(ModelFileError, match=message):
        load(built)

"""What bad input gets, the way a user meets it: ``from_onnx`` and ``python -m daceopt``. Nothing but a clear error."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import daceopt
from daceopt.commands.main import main
from daceopt.errors import DaceoptError, FallbackWarning, ModelFileError, Unsupported
from tests.numerics import assert_within_rounding

WEIGHTS = np.random.default_rng(1).standard_normal((4, 4)).astype(np.float32)


def tensor(name: str, shape: tuple[int | str, ...], kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def proto(nodes, inputs, outputs, tensors=(), domains=()) -> onnx.ModelProto:
    opsets = [helper.make_opsetid("", 20), *(helper.make_opsetid(d, 1) for d in domains)]
    return helper.make_model(
        helper.make_graph(nodes, "g", inputs, outputs, tensors), opset_imports=opsets, ir_version=10
    )


def product(x="x", w="w", h="h", y="y", batch: int | str = 2, node="") -> onnx.ModelProto:
    """y = relu(x @ w)"""
    nodes = [helper.make_node("MatMul", [x, w], [h], name=node), helper.make_node("Relu", [h], [y], name=node)]
    return proto(nodes, [tensor(x, (batch, 4))], [tensor(y, (batch, 4))], [numpy_helper.from_array(WEIGHTS, w)])


def flipped(data: bytes) -> bytes:
    at = data.index(b"MatMul")
    return data[:at] + bytes([data[at] ^ 0x80]) + data[at + 1 :]


def with_missing_tensor() -> bytes:
    model = product()
    model.graph.node[0].input[1] = "nowhere"
    return model.SerializeToString()


def with_external_data(location: str) -> bytes:
    model = product()
    weights = model.graph.initializer[0]
    weights.ClearField("raw_data")
    weights.data_location = TensorProto.EXTERNAL
    weights.external_data.add(key="location", value=location)
    return model.SerializeToString()


def one(op: str, result: tuple[int, ...], kind: int = TensorProto.FLOAT, domain: str = "") -> onnx.ModelProto:
    node = helper.make_node(op, ["x"], ["y"], domain=domain, name="here")
    return proto([node], [tensor("x", (3, 3), kind)], [tensor("y", result, kind)], domains=[domain] if domain else [])


DAMAGED = {
    "truncated": (lambda: product().SerializeToString()[:-9], "truncated"),
    "not protobuf": (lambda: b"hello, I am no model", "truncated, damaged or of another format"),
    "bit-flipped": (lambda: flipped(product().SerializeToString()), "UTF-8"),
    "fails the checker": (with_missing_tensor, "checker.*nowhere"),
    "data outside": (lambda: with_external_data("../../../etc/passwd"), "inside the model's folder"),
    "absurd sizes": (lambda: product(batch=1 << 60).SerializeToString(), "1024 GiB"),
}


@pytest.mark.parametrize("kind", DAMAGED)
@pytest.mark.parametrize("command", ["optimize", "explain", "bisect"])
def test_a_damaged_file_is_one_line_and_exit_code_two(kind: str, command: str, tmp_path: Path, capsys) -> None:
    make, reason = DAMAGED[kind]
    path = tmp_path / "bad.onnx"
    path.write_bytes(make())
    with pytest.raises(ModelFileError, match=f"(?s){reason}"):
        daceopt.from_onnx(path)
    assert main([command, str(path)]) == 2
    found = capsys.readouterr()
    assert found.err.startswith(f"daceopt {command}: ") and found.err.count("\n") == 1 and not found.out
    assert "bad.onnx" in found.err


REFUSED = {
    "complex": (lambda: one("Identity", (3, 3), TensorProto.COMPLEX64), "element type COMPLEX64"),
    "an operator that nobody has": (lambda: one("Mystery", (3, 3), domain="acme"), r"Mystery \('here'\).*ONNX Runtime"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_run_anywhere_names_the_place(kind: str, tmp_path: Path, capsys) -> None:
    make, reason = REFUSED[kind]
    path = tmp_path / "model.onnx"
    onnx.save(make(), path)
    with pytest.raises(Unsupported, match=f"(?s){reason}"):
        daceopt.from_onnx(path)
    assert main(["optimize", str(path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_an_operator_without_a_native_form_runs_in_onnx_runtime(tmp_path: Path, capsys) -> None:
    foreign = helper.make_node("SampleOp", ["a"], ["d"], name="there", domain="com.microsoft")
    nodes = [helper.make_node("Abs", ["x"], ["a"]), foreign, helper.make_node("Exp", ["d"], ["y"])]
    model = proto(nodes, [tensor("x", (3, 3))], [tensor("y", (3, 3))], domains=["com.microsoft"])
    model.graph.value_info.append(tensor("d", (3, 3)))
    x = torch.randn(3, 3)

    def reference(x: torch.Tensor) -> torch.Tensor:
        return torch.exp(x.abs())

    for _ in range(2):  # built, then from the cache
        with pytest.warns(FallbackWarning, match="operator SampleOp runs in ONNX Runtime: .*no native") as caught:
            compiled = daceopt.from_onnx(model)
        assert [w.filename for w in caught] == [__file__]
        assert_within_rounding(compiled(x), reference(x.double()), reference(x))
    with pytest.raises(Unsupported, match=r"SampleOp \('there'\).*no native lowering"):
        daceopt.from_onnx(model, fallback=False)
    onnx.save(model, tmp_path / "foreign.onnx")
    with pytest.warns(FallbackWarning):
        assert main(["optimize", str(tmp_path / "foreign.onnx"), "--seconds", "0"]) == 0
    assert "within rounding" in capsys.readouterr().out


def test_arguments_that_do_not_fit_say_what_was_expected() -> None:
    compiled = daceopt.from_onnx(product(batch="rows"))
    x = np.zeros((3, 4), np.float32)
    for wrong, found in (
        (x.astype(np.float64), "expected torch.float32 of shape .*got torch.float64"),
        (x.astype(np.int64), "got torch.int64"),
        (x.astype(np.float16), "got torch.float16"),
        (x[0], r"got torch.float32 of shape \[4\]"),
        (x[:, :3], "axis 1: expected 4, got 3"),
        (torch.zeros(3, 4, device="meta"), "on device meta; compiled programs run on cpu and cuda"),
        (torch.zeros(3, 4).to_sparse(), "expected torch.float32 of shape"),
        ("text", "got str"),
        (None, "got NoneType"),
        ([[1.0], [1.0, 2.0]], "got list"),
    ):
        with pytest.raises(DaceoptError, match=found):
            compiled(wrong)
    for args, kwargs in (((), {}), ((x, x), {}), ((), {"z": x}), ((x,), {"x": x})):
        with pytest.raises(DaceoptError, match=r"expected the inputs \['x'\]"):
            compiled(*args, **kwargs)
    assert compiled(x[:0]).shape == (0, 4)
    assert_within_rounding(compiled(x=x + 1), np.maximum((x + 1).astype(np.float64) @ WEIGHTS, 0), None)

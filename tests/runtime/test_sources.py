"""The C++ of programs is kept beside them and comes back as it was compiled."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

import daceopt
from daceopt.codegen.bundle import Bundle
from daceopt.codegen.shown import by_result, source_of
from daceopt.errors import BuildError, DaceoptError
from daceopt.models.onnx_model import OnnxModel
from daceopt.runtime.executable import Executable
from daceopt.runtime.sources import FILE, Sources, matching
from tests.onnx_models import FLOAT, INT64, proto

TEXTS = Sources("frame", {"k_1": "one", "call_1": "two"}, [["k_1"], ["call_1"], ["k_1", "call_1"], []], ["for"] * 4)
DAMAGED = [b"", b"text", TEXTS.to_bytes()[:-9], gzip.compress(b"[]", mtime=0), gzip.compress(b'{"x": 1}', mtime=0)]


def test_sources_by_position_and_as_a_whole() -> None:
    assert [TEXTS.of(k) for k in range(4)] == ["one", "two", "one\ntwo", ""]
    assert TEXTS.whole() == "one\ntwo\nframe"
    assert Sources.from_bytes(TEXTS.to_bytes()) == TEXTS and TEXTS.to_bytes() == TEXTS.to_bytes()


@pytest.mark.parametrize("data", DAMAGED)
def test_damage_is_a_build_error(data: bytes) -> None:
    with pytest.raises(BuildError, match="the sources of a built program cannot be read"):
        Sources.from_bytes(data)


def test_labels_match_in_part() -> None:
    assert matching(["softmax_max", "add", "Softmax"], "SOFTMAX") == [0, 2]
    assert matching(["add__tanh", "add__tanh__mul_backward"], "tanh_backward") == [1]
    with pytest.raises(DaceoptError, match=r"'softmx'; there are: softmax, add; did you mean 'softmax'\?"):
        matching(["softmax", "add", "add"], "softmx")
    with pytest.raises(DaceoptError, match="there are: none"):
        matching([], "x")


@pytest.fixture(scope="module")
def model() -> OnnxModel:
    """softmax(x @ w), and a loop that adds x to itself."""
    w = np.random.default_rng(0).standard_normal((6, 5)).astype(np.float32)
    body = helper.make_graph(
        [helper.make_node("Add", ["c", "x"], ["d"]), helper.make_node("Identity", ["more"], ["again"])],
        "body",
        [helper.make_tensor_value_info(n, t, s) for n, t, s in (("i", INT64, []), ("more", TensorProto.BOOL, []))]
        + [helper.make_tensor_value_info("c", FLOAT, [3, 6])],
        [helper.make_tensor_value_info(n, t, s) for n, t, s in (("again", TensorProto.BOOL, []), ("d", FLOAT, [3, 6]))],
    )
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Softmax", ["h"], ["y"]),
        helper.make_node("Loop", ["trips", "", "x"], ["z"], body=body),
    ]
    constants = {"w": w, "trips": np.array(4)}
    return daceopt.from_onnx(
        proto(nodes, [("x", FLOAT, [3, 6])], [("y", FLOAT, [3, 5]), ("z", FLOAT, [3, 6])], constants=constants)
    )


def test_every_kernel_of_a_program_has_its_source(model: OnnxModel) -> None:
    program = model.pair.forward
    kernels = program.manifest.kernels
    assert len(program.sources.nodes) == len(kernels) >= 3
    texts = [program.sources.of(k) for k in range(len(kernels))]
    assert all(texts)
    assert "dop::exp" in program.source("softmax") and "// softmax" in program.source("softmax")
    assert "daceopt::contraction_" in program.source("matmul") and "dop::exp" not in program.source("matmul")
    loop = next(k for k, info in enumerate(kernels) if "loop" in info.label.lower())
    assert 'extern "C" void k_' in texts[loop] and "+" in texts[loop]
    assert all(text in program.source() for text in texts) and "daceopt::contraction_" in program.source()
    assert {name for info in kernels for name in info.writes} == by_result(program).keys()
    schedules = program.sources.schedules
    assert len(schedules) == len(kernels) and "s0(" in schedules[loop]
    assert all(bool(text) is ("extern" in source) for text, source in zip(schedules, texts))


def test_it_is_what_was_compiled(model: OnnxModel) -> None:
    exported = model.pair.forward.source("softmax")
    name = exported.partition("void ")[2].partition("(")[0]
    assert name.startswith("k_") and name in model.pair.forward.sources.frame


def test_a_warm_start_has_it_too(model: OnnxModel) -> None:
    again = Executable(model.pair.forward.entry)
    assert again.source() == model.pair.forward.source()
    assert again.sources.schedules == model.pair.forward.sources.schedules


def test_a_pair_names_its_directions(model: OnnxModel) -> None:
    assert source_of(model.pair).startswith("// forward\n")
    assert source_of(model.pair, "softmax") == f"// forward\n{model.pair.forward.source('softmax')}"
    with pytest.raises(DaceoptError, match=r"did you mean"):
        source_of(model.pair, "softmux_max")


def test_a_program_of_a_bundle_has_it_before_it_is_compiled() -> None:
    relu = proto([helper.make_node("Relu", ["x"], ["y"])], [("x", FLOAT, [3])], [("y", FLOAT, [3])])
    compiled = daceopt.from_onnx(relu, bundle=Bundle())
    assert 'extern "C" void k_' in compiled.pair.forward.source()


def test_lost_sources_are_said_to_be_lost(model: OnnxModel, tmp_path: Path) -> None:
    assert json.loads(gzip.decompress((model.pair.forward.entry / FILE).read_bytes())).keys() == {
        "frame",
        "units",
        "nodes",
        "schedules",
    }
    program = Executable(model.pair.forward.entry)
    program.entry = tmp_path
    with pytest.raises(BuildError, match=r"cannot read .*sources\.json\.gz"):
        program.source()

"""``explain`` on real models: both directions, ONNX, fallbacks; the model stays as it was."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from torch import nn

import daceopt
from daceopt.errors import FallbackWarning
from daceopt.explore import Report
from daceopt.ir.schedule import schedule_text
from tests.onnx_models import detector


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm = nn.Linear(16, 16), nn.LayerNorm(16)

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return self.norm(nn.functional.gelu(self.up(x)) * scale)


class Branches(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1 if x.sum() > 0 else x - 1


@pytest.fixture(scope="module")
def trained() -> Report:
    torch.manual_seed(0)
    return daceopt.explain(Net(), torch.randn(4, 16), scale=2.0)


def test_a_training_report_has_both_directions_measured(trained: Report) -> None:
    assert trained.reason == "" and trained.mode == "training"
    assert all("the cost model" in note for note in trained.notes)
    assert trained.inputs == ["x: float32[4, 16]"]
    assert {k.direction for k in trained.kernels} == {"forward", "backward"}
    assert all(k.seconds is not None and 0 < k.seconds < 1 for k in trained.kernels)
    assert all(k.limit > 0 and k.bytes > 0 for k in trained.kernels)
    assert set(trained.seconds) >= {"capture", "recipe", "differentiate", "build"}


def test_products_name_their_library_and_why(trained: Report) -> None:
    products = [k for k in trained.kernels if k.library]
    assert {k.library for k in products} in ({"mkl"}, {"onednn_product"}) and all(k.why for k in products)
    assert products[0].flops == 2 * 4 * 16 * 16 and "A 4x16, B 16x16" in products[0].contents


def test_results_are_called_as_in_the_model(trained: Report) -> None:
    written = ", ".join(k.writes for k in trained.kernels)
    for name in ("output 0", "gradient of up.weight", "gradient of norm.bias"):
        assert name in written


def test_the_recipe_is_reported_with_its_effect(trained: Report) -> None:
    assert {s.direction for s in trained.steps} == {"forward", "backward"}
    assert all(s.seconds >= 0 and min(s.bytes) > 0 for s in trained.steps)
    before, after = trained.nodes
    assert before > after == len(trained.kernels)
    assert trained.bytes_moved[0] > trained.bytes_moved[1] == sum(k.bytes for k in trained.kernels)


def test_operators_of_the_model_are_listed(trained: Report) -> None:
    found = {o.name: o for o in trained.operators}
    assert found["native_layer_norm.default"].how == "native" and found["native_layer_norm.default"].count == 1
    assert not trained.fallbacks and not trained.hosted


def test_generated_kernels_have_their_schedule_and_library_calls_have_none(trained: Report) -> None:
    for kernel in trained.kernels:
        assert bool(kernel.schedule) is not bool(kernel.library) and kernel.source
        assert not kernel.schedule or schedule_text.text(schedule_text.parse(kernel.schedule)) == kernel.schedule


def test_kernels_say_which_operators_and_modules_they_come_from(trained: Report) -> None:
    assert trained.kernel("layernormalization").origin == "up, norm"
    assert {k.direction for k in trained.matching("layernormalization")} == {"forward", "backward"}
    labels = {k.label for k in trained.of("backward")}
    assert "matmul_backward" in labels and all(label.endswith("_backward") for label in labels)
    assert all(k.origin == "up" for k in trained.kernels if k.library)
    assert not [k.label for k in trained.of("forward") if k.label.endswith("_backward")]


def test_a_warm_start_shows_what_was_built() -> None:
    x, compare = torch.randn(4, 16), ("label", "origin", "schedule", "source")
    first, again = (daceopt.explain(Net(), x, scale=2.0, measure=False) for _ in range(2))
    assert again.cached
    for name in compare:
        assert [getattr(k, name) for k in again.kernels] == [getattr(k, name) for k in first.kernels]


def test_equal_layers_are_one_kernel_of_several_origins() -> None:
    model = nn.Sequential(*[nn.Sequential(nn.Linear(8, 8), nn.LogSoftmax(-1)) for _ in range(2)])
    report = daceopt.explain(model, torch.randn(4, 8), backward=False, measure=False)
    first, second = report.matching("softmax")
    assert first.label == second.label == "add__logsoftmax" and first.source == second.source
    assert first.origin == "0.0, 0.1" and report.kernel("1.1") is second


def test_it_shows_itself(trained: Report) -> None:
    assert "gradient of up.weight" in str(trained) and "gradient of up.weight" in trained._repr_html_()


def test_inference_and_frozen_models_have_no_backward() -> None:
    x = torch.randn(4, 16)
    assert daceopt.explain(Net(), x, backward=False, measure=False).mode == "inference"
    report = daceopt.explain(Net().requires_grad_(False), x, measure=False)
    assert report.mode == "inference" and not report.of("backward")
    assert all(k.seconds is None for k in report.kernels)


def test_the_model_stays_as_it_is() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5))
    x = torch.randn(4, 8)
    state, attributes, random = copy.deepcopy(model.state_dict()), dict(model.__dict__), torch.get_rng_state()
    assert daceopt.explain(model, x).reason == ""
    assert model.__dict__.keys() == attributes.keys() and model.training
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())
    assert torch.equal(random, torch.get_rng_state()) and all(p.grad is None for p in model.parameters())


def test_an_optimized_module_explains_itself_with_its_own_options() -> None:
    model = daceopt.optimized_module(Net(), recipe="none", backward=False)
    x = torch.randn(4, 16)
    report = model.daceopt.explain(x)
    assert (report.recipe, report.mode, report.reason) == ("none", "inference", "")
    model(x)
    assert report.nodes == model.daceopt.stats.kernels and report.bytes_moved == model.daceopt.stats.bytes_moved
    assert model.daceopt.stats.calls == 1


def test_a_dynamic_module_is_explained_for_the_sizes_of_the_call() -> None:
    model = daceopt.optimized_module(Net(), dynamic={"x": {0: torch.export.Dim("n", min=2, max=64)}})
    small, large = (model.daceopt.explain(torch.randn(n, 16), measure=False) for n in (4, 32))
    assert (small.reason, large.reason) == ("", "")
    assert large.bytes_moved[1] == sum(k.bytes for k in large.kernels) > small.bytes_moved[1]


def test_a_broken_graph_is_reported_with_its_pieces() -> None:
    report = daceopt.explain(Branches(), torch.randn(3))
    (note,) = [n for n in report.notes if "breaks" in n]
    assert report.kernels and not report.reason and note in str(report)
    assert "`return x + 1 if x.sum() > 0 else x - 1`. Instead: torch.where" in note


def test_what_cannot_be_compiled_is_reported() -> None:
    report = daceopt.explain(nn.ReLU(), torch.ones(3, device="meta"))
    assert "device meta" in report.reason and not report.kernels
    assert report.reason.splitlines()[0] in str(report)


def test_operators_that_aten_runs_are_listed() -> None:
    class Bessel(nn.Module):
        def forward(self, x):
            return torch.special.i1e(x) * 2

    report = daceopt.explain(Bessel(), torch.ones(3))
    assert [o.name for o in report.hosted] == ["special_i1e.default"] and report.kernels and not report.fallbacks


# -------------------------------------------------------------------- ONNX


def _model(*nodes: Any, shape: tuple[Any, ...] = (3, 4)) -> onnx.ModelProto:
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n in ("x", "y")]
    graph = helper.make_graph(list(nodes), "g", values[:1], values[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def test_an_onnx_file_a_proto_and_a_callable(tmp_path: Path) -> None:
    proto = _model(helper.make_node("Exp", ["x"], ["h"]), helper.make_node("Relu", ["h"], ["y"]), shape=("n", 4))
    path = tmp_path / "model.onnx"
    onnx.save(proto, path)
    array = np.ones((5, 4), np.float32)
    reports = [daceopt.explain(m, array) for m in (path, str(path), proto, daceopt.from_onnx(proto))]
    assert [r.reason for r in reports] == [""] * 4 and reports[0].title == str(path)
    assert all(len(r.kernels) == 1 and r.kernels[0].bytes == 2 * 5 * 4 * 4 for r in reports)
    assert reports[0].inputs == ["x: float32[5, 4]"]
    assert daceopt.explain(path).notes  # random inputs, small sizes


def test_kernels_of_an_onnx_file_come_from_its_nodes() -> None:
    nodes = [helper.make_node("Exp", ["x"], ["h"], name="/first/Exp"), helper.make_node("Relu", ["h"], ["y"], name="b")]
    (kernel,) = daceopt.explain(_model(*nodes), measure=False).kernels
    assert (kernel.label, kernel.origin) == ("exp__relu", "/first/Exp, b") and "s0(" in kernel.schedule


def test_wrong_inputs_of_an_onnx_model_are_the_callers_error() -> None:
    proto = _model(helper.make_node("Relu", ["x"], ["y"]))
    with pytest.raises(TypeError, match="takes 1 input"):
        daceopt.explain(proto, np.ones((3, 4)), np.ones(3))
    with pytest.raises(TypeError, match="expected the shape"):
        daceopt.explain(proto, np.ones((3, 5)))


def test_a_damaged_file_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "bad.onnx"
    path.write_bytes(b"not a model")
    assert "bad.onnx" in daceopt.explain(path).reason


def test_anything_else_is_a_type_error() -> None:
    with pytest.raises(TypeError, match=r"nn\.Module"):
        daceopt.explain(object())


def _single(*nodes: onnx.NodeProto, inputs: list[Any], outputs: list[Any]) -> onnx.ModelProto:
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(helper.make_graph(nodes, "g", inputs, outputs), opset_imports=opsets, ir_version=10)


SQUARE = [helper.make_tensor_value_info(n, TensorProto.FLOAT, (4, 4)) for n in ("x", "y")]


def test_one_operator_in_onnx_runtime_among_native_ones() -> None:
    binarizer = helper.make_node("Binarizer", ["a"], ["b"], domain="ai.onnx.ml", threshold=0.5)
    nodes = [helper.make_node("Relu", ["x"], ["a"]), binarizer, helper.make_node("Add", ["b", "x"], ["y"])]
    report = daceopt.explain(_single(*nodes, inputs=SQUARE[:1], outputs=SQUARE[1:]), measure=False)
    assert {o.name: o.how for o in report.operators} == {
        "ai.onnx.ml.Binarizer": "fallback", "Relu": "native", "Add": "native"
    }  # fmt: skip
    assert report.reason == "" and [k.library for k in report.kernels] == ["", "host", ""]
    assert "Binarizer has no native lowering" in report.fallbacks[0].reason


def test_a_model_that_runs_in_onnx_runtime_as_a_whole() -> None:
    counted = helper.make_tensor_value_info("y", TensorProto.INT64, ("rank", "count"))
    model = _single(helper.make_node("NonZero", ["x"], ["y"]), inputs=SQUARE[:1], outputs=[counted])
    report = daceopt.explain(model)
    assert report.reason.startswith("the model as a whole, in ONNX Runtime: operator NonZero")
    assert "depends on the data" in str(report)
    with pytest.warns(FallbackWarning):
        compiled = daceopt.from_onnx(model)
    assert daceopt.explain(compiled).reason == report.reason


def test_a_model_that_is_compiled_for_the_values_of_a_call() -> None:
    sizes = helper.make_tensor_value_info("sizes", TensorProto.INT64, (2,))
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, ("p", "q"))
    model = _single(helper.make_node("Reshape", ["x", "sizes"], ["y"]), inputs=[SQUARE[0], sizes], outputs=[result])
    note = daceopt.explain(model).notes[0]
    assert "no program yet" in note and "new values of 'sizes'; give explain" in note
    report = daceopt.explain(model, np.ones((4, 4), np.float32), np.array([2, 8]), measure=False)
    assert report.reason == "" and report.kernels and report.inputs == ["x: float32[4, 4]"]


@pytest.mark.parametrize("batch", [1, None])
def test_a_model_whose_end_runs_in_onnx_runtime(batch: int | None) -> None:
    model, image = detector(batch), np.ones((1, 3, 32, 32), np.float32)
    report = daceopt.explain(model, image, measure=False)
    assert report.reason == "" and report.inputs == ["image: float32[1, 3, 32, 32]"]
    assert {(o.name, o.count) for o in report.fallbacks} == {("NonMaxSuppression", 1), ("Gather", 2), ("Squeeze", 1)}
    reasons = {o.name: o.reason for o in report.fallbacks}
    assert "depends on the data" in reasons["NonMaxSuppression"] and reasons["Gather"] == "depends on NonMaxSuppression"
    assert {o.name for o in report.operators if o.how == "native"} >= {"Conv", "Relu", "Sigmoid"}
    assert {"output scores", "output boxes"} <= {k.writes for k in report.kernels}
    assert any("the end of the model, 4 of its operators" in note for note in report.notes)
    if batch is None:
        assert "the end of the model, 4 of its operators" in daceopt.explain(model).notes[0]

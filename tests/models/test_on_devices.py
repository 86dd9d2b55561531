"""ONNX models and programs of DaCe on tensors of a device: in the emulation, compiled by nvcc, and on a device."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

import daceopt
from daceopt.codegen.bundle import Bundle
from daceopt.codegen.cuda.toolchain import nvcc
from daceopt.errors import DaceoptError, FallbackWarning
from tests.capture.dace import programs
from tests.models.test_models import compare, example, gradients, tensors, widened
from tests.models.test_sdfg_program import operands, reference
from tests.models.zoo import ARCHITECTURES
from tests.modules.devices import on_device
from tests.numerics import assert_within_rounding
from tests.onnx_models import detector, proto


def _layer() -> onnx.ModelProto:
    """y = softmax(x w), of any number of rows."""
    weight = onnx.numpy_helper.from_array(np.linspace(-1, 1, 32, dtype=np.float32).reshape(8, 4), "w")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Softmax", ["h"], ["y"])]
    made = proto(nodes, [("x", TensorProto.FLOAT, ["n", 8])], [("y", TensorProto.FLOAT, ["n", 4])])
    made.graph.initializer.append(weight)
    return made


def _expected(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x @ torch.linspace(-1, 1, 32, dtype=x.dtype).reshape(8, 4), -1)


def _check_layer(run: daceopt.models.onnx_model.OnnxModel, device: str) -> None:
    for rows in (3, 0, 17):
        x = torch.randn(rows, 8)
        y = run(x.to(device))
        assert y.device.type == device
        assert_within_rounding(y.cpu(), _expected(x.double()), _expected(x))
        assert np.array_equal(run(x.numpy()), y.cpu().numpy())


def test_an_onnx_model(emulated: None) -> None:
    run = daceopt.from_onnx(_layer(), recipe="gpu", fallback=False)
    _check_layer(run, "cpu")
    assert run.pair.forward.manifest.has_stream
    with pytest.raises(DaceoptError, match="input 'x' is on device meta"):
        run(torch.empty(2, 8, device="meta"))


def test_what_explain_says_of_an_onnx_model(emulated: None) -> None:
    report = daceopt.explain(daceopt.from_onnx(_layer(), recipe="gpu"), torch.randn(3, 8))
    assert not report.reason and report.recipe == "gpu"
    assert report.kernels and all(kernel.seconds for kernel in report.kernels)


def test_onnx_models_compiled_together(emulated: None) -> None:
    bundle = Bundle()
    run, other = (daceopt.from_onnx(_layer(), recipe=recipe, bundle=bundle) for recipe in ("gpu", "cpu"))
    _check_layer(run, "cpu")
    _check_layer(other, "cpu")
    assert run.pair.forward.manifest.has_stream and not other.pair.forward.manifest.has_stream


def _images(model: onnx.ModelProto) -> list[torch.Tensor]:
    return [torch.rand([d.dim_value for d in v.type.tensor_type.shape.dim]) for v in model.graph.input]


def test_the_end_of_a_model_in_onnx_runtime(emulated: None) -> None:
    model = detector(2)
    with pytest.warns(FallbackWarning, match="the end of the model"):
        run, plain = daceopt.from_onnx(model, recipe="gpu"), daceopt.from_onnx(model, recipe="none")
    inputs = [x.numpy() for x in _images(model)]
    for ours, expected in zip(run(*inputs), plain(*inputs), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.skipif(nvcc() is None, reason="there is no nvcc")
def test_nvcc_builds_what_is_for_a_device() -> None:
    run = daceopt.from_onnx(_layer(), fallback=False, device="cuda:0")
    manifest = run.pair.forward.manifest
    assert manifest.has_stream and {t.device for t in (*manifest.inputs, *manifest.outputs)} == {"cuda"}
    x = np.ones((2, 8), np.float32)
    host = run(torch.from_numpy(x))  # compiled for the host by the first call there
    assert host.device.type == "cpu" and not run.pair.forward.manifest.has_stream


@on_device
def test_an_onnx_model_on_a_device() -> None:
    run = daceopt.from_onnx(_layer(), fallback=False)  # for the host, until tensors of a device come
    _check_layer(run, "cpu")
    _check_layer(run, "cuda")
    assert run.pair.forward.manifest.has_stream is False  # of the last call, on arrays of NumPy
    own = daceopt.from_onnx(_layer(), fallback=False, device="cuda")
    assert isinstance(own(np.ones((2, 8), np.float32)), np.ndarray) and own.pair.forward.manifest.has_stream
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: own(torch.ones(5, 8, device="cuda")), range(8)))
    assert all(torch.equal(y, found[0]) for y in found)
    report = daceopt.explain(own, torch.randn(3, 8, device="cuda"))
    assert not report.reason and all(kernel.seconds for kernel in report.kernels)


@on_device
def test_the_end_of_a_model_beside_a_device() -> None:
    model = detector(2)
    inputs = _images(model)
    with pytest.warns(FallbackWarning, match="the end of the model"):
        run, plain = daceopt.from_onnx(model), daceopt.from_onnx(model, recipe="none")
        ours = run(*[x.cuda() for x in inputs])
    for found, expected in zip(ours, plain(*inputs), strict=True):
        assert found.device.type == "cuda"
        np.testing.assert_allclose(found.cpu(), expected, rtol=1e-5)


def _check_attention(device: str, recipe: str) -> None:
    run = daceopt.from_sdfg(programs.attention, recipe)
    for n, m in ((3, 5), (1, 7)):
        theirs = operands(n, m, gradient=True)
        ours = [t.detach().to(device).requires_grad_() for t in theirs]
        found, expected = run(*ours), reference(*theirs)
        found.square().sum().backward()
        expected.square().sum().backward()
        pairs = [(found, expected), *((a.grad, b.grad) for a, b in zip(ours, theirs, strict=True))]
        for a, b in pairs:
            assert a.device.type == device
            torch.testing.assert_close(a.cpu(), b)


def test_a_program_of_dace(emulated: None) -> None:
    _check_attention("cpu", "gpu")


@on_device
def test_a_program_of_dace_on_a_device() -> None:
    _check_attention("cuda", "auto")
    run = daceopt.from_sdfg(programs.attention)
    q, k, v = operands(3, 5)
    with pytest.raises(DaceoptError, match="several devices: input 'q' is on cuda:0, input 'k' is on cpu"):
        run(q.cuda(), k, v)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n == "dlrm" else pytest.mark.models) for n in ARCHITECTURES]
)
def test_architectures(name: str, emulated: None) -> None:
    """Whole networks by the recipe ``gpu``, forward and backward."""
    found = example(name)
    ours = daceopt.optimized_module(copy.deepcopy(found.module), recipe="gpu", fallback="raise")
    with torch.no_grad():
        compare(tensors(ours(**found.inputs)), found)
    exact, peer = copy.deepcopy(found.module).double(), gradients(found.module, found.inputs)
    assert_within_rounding(gradients(ours, found.inputs), gradients(exact, widened(found.inputs)), peer)

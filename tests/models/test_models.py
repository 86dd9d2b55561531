"""Whole models run natively: compiled from PyTorch, and from the ONNX file that PyTorch exports of them."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree

import daceopt
from daceopt.errors import DaceoptError
from tests.models.zoo import ARCHITECTURES, Example
from tests.numerics import assert_within_rounding

QUICKLY_TRAINED = ("bert", "llama", "resnet", "unet", "mlp_mixer", "dlrm")  # the others by `make test-models`
LONG = (pytest.mark.slow, pytest.mark.models)
AS_MODULES = [n for n in ARCHITECTURES if n not in ("yolov4", "mobilenet_v2", "swin")]
AS_FILES = [*QUICKLY_TRAINED, "whisper", "wavenet", "lstm", "gpt2"]


def some(quick: Sequence[str]) -> pytest.MarkDecorator:
    """All architectures, of which ``make test`` runs the quick ones."""
    return pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in quick else LONG) for n in ARCHITECTURES])


def example(name: str) -> Example:
    torch.manual_seed(0)
    found = ARCHITECTURES[name]()
    found.module.eval()
    return found


def widened(value: Any) -> Any:
    """Real tensors in float64."""
    return pytree.tree_map_only(torch.Tensor, lambda t: t.double() if t.is_floating_point() else t, value)


def tensors(result: Any) -> list[torch.Tensor]:
    """The tensors of a model's result, in its own order."""
    result = result.to_tuple() if hasattr(result, "to_tuple") else result
    return [x for x in pytree.tree_leaves(result) if isinstance(x, torch.Tensor)]


def compare(ours: Any, found: Example) -> None:
    """The same results as float64, as far as PyTorch's own float32 reaches."""
    with torch.no_grad():
        peer = tensors(found.module(**found.inputs))
        exact = tensors(copy.deepcopy(found.module).double()(**widened(found.inputs)))
    assert len(ours) == len(exact)
    for a, r, t in zip(ours, exact, peer, strict=True):
        assert a.dtype == t.dtype
        assert_within_rounding(a, r, t)


@pytest.mark.share(3)
@some(AS_MODULES)
def test_module(name):
    found = example(name)
    optimized = daceopt.optimized_module(copy.deepcopy(found.module), fallback="raise")
    with torch.no_grad():
        compare(tensors(optimized(**found.inputs)), found)


@pytest.mark.share(3)
@some(AS_FILES)
def test_onnx_file(name, tmp_path: Path):
    found = example(name)
    path = tmp_path / "model.onnx"
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's own, which differ from model to model
        torch.onnx.export(found.module, (), path, kwargs=found.inputs, dynamo=True, verbose=False)
    optimized = daceopt.from_onnx(path, fallback=False)
    given = pytree.tree_leaves(found.inputs)
    results = optimized(*given)
    compare(results if isinstance(results, list) else [results], found)


DYNAMIC = {
    "resnet": {"pixel_values": {0: "batch"}},
    "bert": {"input_ids": {0: "batch"}, "attention_mask": {0: "batch"}},
    "mlp_mixer": {"x": {0: "batch"}},
}


@pytest.mark.share(3)
@pytest.mark.parametrize("name", DYNAMIC)
def test_onnx_file_with_dynamic_sizes(name, tmp_path: Path):
    """Exported for one size, compiled once, called with another."""
    found = example(name)
    path = tmp_path / "model.onnx"
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            found.module, (), path, kwargs=found.inputs, dynamo=True, verbose=False, dynamic_shapes=DYNAMIC[name]
        )
    optimized = daceopt.from_onnx(path, fallback=False)
    for count in (2, 3):
        other = {k: torch.cat([v, v])[:count] for k, v in found.inputs.items()}
        results = optimized(*pytree.tree_leaves(other))
        compare(results if isinstance(results, list) else [results], Example(found.module, other))


@pytest.mark.parametrize("name", ["bert", pytest.param("gpt2", marks=LONG)])
def test_onnx_file_with_dynamic_batch_and_length(name, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """One program for sentences of all lengths; one that is too long is an error."""
    from daceopt import pipeline

    programs, compile_model = [], pipeline.compile_model
    monkeypatch.setattr(
        pipeline, "compile_model", lambda *a, **k: programs.append(compile_model(*a, **k)) or programs[-1]
    )
    found = example(name)
    path = tmp_path / "model.onnx"
    sizes = {key: {0: "batch", 1: "sequence"} for key in found.inputs}
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(found.module, (), path, kwargs=found.inputs, dynamo=True, verbose=False, dynamic_shapes=sizes)
    optimized = daceopt.from_onnx(path, fallback=False)
    for count, length in ((2, 9), (3, 5), (1, 32)):
        other = {"input_ids": torch.randint(3, 40, (count, length)), "attention_mask": torch.ones(count, length).long()}
        other["attention_mask"][0, length - 2 :] = 0
        results = optimized(*other.values())
        compare(results if isinstance(results, list) else [results], Example(found.module, other))
    assert len(programs) == 1
    for _ in range(2):
        with pytest.raises((DaceoptError, IndexError)):
            optimized(torch.full((1, 33), 5), torch.ones(1, 33).long())


@pytest.mark.share(4)
@some(QUICKLY_TRAINED)
def test_training(name):
    """The gradients of all parameters, together: those of some (a key's bias, say) are nothing but rounding."""
    found = example(name)
    optimized = daceopt.optimized_module(copy.deepcopy(found.module), fallback="raise")
    exact = copy.deepcopy(found.module).double()
    peer = gradients(found.module, found.inputs)
    assert_within_rounding(gradients(optimized, found.inputs), gradients(exact, widened(found.inputs)), peer)


def gradients(module: torch.nn.Module, inputs: dict[str, Any]) -> torch.Tensor:
    """Of a weighted sum of the results by every parameter, one after another."""
    results = [t for t in tensors(module(**inputs)) if t.is_floating_point() and t.requires_grad]
    loss = sum((t * torch.arange(t.numel(), dtype=t.dtype).cos().view(t.shape)).sum() for t in results)
    parameters = [p for p in module.parameters() if p.requires_grad]
    found = torch.autograd.grad(loss, parameters, allow_unused=True)
    return torch.cat([torch.zeros_like(p).flatten() if g is None else g.flatten() for p, g in zip(parameters, found)])

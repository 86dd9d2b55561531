"""Kernels, frames and library code for another kind of processor: they compile there, and compute the same."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from daceopt.codegen.include import INCLUDE
from daceopt.libs.base import INCLUDE as LIBRARY_HEADERS
from daceopt.modules.observe import observe
from daceopt.modules.options import Options
from tests.codegen import aarch64

emulated = pytest.mark.skipif(bool(aarch64.lacking()), reason=aarch64.lacking() or "all of it is there")
_X86 = re.compile(r"immintrin|x86intrin|\b_mm\d*_|__builtin_ia32|__m(128|256|512)\b|__cpuid|\brdtsc\b")
_GUARD = re.compile(r"#\s*if.*\b(__x86_64__|__AVX|__SSE)")


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.norm = nn.Linear(24, 24), nn.LayerNorm(24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights = (self.query(x) @ x.transpose(1, 2)).softmax(-1)
        return self.norm(weights @ x + nn.functional.gelu(x))


MODELS: Mapping[str, tuple[nn.Module, tuple[int, ...]]] = {
    "mlp": (nn.Sequential(nn.Linear(20, 33), nn.Tanh(), nn.Linear(33, 7), nn.Sigmoid()), (5, 20)),
    "normalization": (nn.Sequential(nn.LayerNorm(50), nn.Softmax(-1), nn.ELU()), (3, 17, 50)),
    "attention": (Attention(), (2, 9, 24)),
    "convolutions": (
        nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 4, 3, stride=2)),
        (2, 3, 14, 14),
    ),
}


@pytest.mark.aarch64
@emulated
@pytest.mark.parametrize("name", MODELS)
def test_inference(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, shape = MODELS[name]
    x = torch.randn(shape)
    with torch.no_grad():
        ((piece, tensors),) = observe(model, (x,), {}, Options(recipe="cpu")).graphs
        expected = model.double()(x.double())
        model.float()
    feeds = {f"input:{k}": t.numpy() for k, t in enumerate(tensors)}
    found = aarch64.run(*piece.pair.graphs.directions()[0], feeds, tmp_path).outputs["output:0"]
    np.testing.assert_allclose(found.reshape(expected.shape), expected.numpy(), rtol=2e-5, atol=2e-6)


@pytest.mark.aarch64
@emulated
@pytest.mark.parametrize("name", ["mlp", "attention", "convolutions"])
def test_gradients(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, shape = MODELS[name]
    x = torch.randn(shape)
    ((piece, tensors),) = observe(model, (x,), {}, Options(recipe="cpu")).graphs
    feeds = {f"input:{k}": t.detach().numpy() for k, t in enumerate(tensors)}
    forward, backward = piece.pair.graphs.directions()
    ran = aarch64.run(*forward, feeds, tmp_path)
    feeds |= ran.outputs | {"grad:0": np.ones_like(ran.outputs["output:0"])}
    gradients = aarch64.run(*backward, feeds, tmp_path, ran.saved).outputs
    doubles = model.double()
    doubles.zero_grad()
    doubles(x.double()).sum().backward()
    expected = {_role(p, tensors): p.grad.numpy() for p in doubles.parameters() if p.grad is not None}
    model.float()
    assert gradients.keys() == expected.keys() and gradients
    for role, gradient in gradients.items():
        np.testing.assert_allclose(gradient, expected[role], rtol=1e-4, atol=1e-5)


def _role(parameter: torch.Tensor, tensors: Sequence[torch.Tensor]) -> str:
    (k,) = (k for k, t in enumerate(tensors) if t.shape == parameter.shape and torch.equal(t, parameter.float()))
    return f"grad_input:{k}"


def test_intrinsics_of_x86_stand_behind_guards() -> None:
    """Whatever names a vector instruction of one kind of processor has another way for the others."""
    paths = [p for folder in {INCLUDE, LIBRARY_HEADERS, LIBRARY_HEADERS.parent} for p in folder.rglob("*.[hc]*")]
    assert len(paths) > 20
    for path in paths:
        depth: list[bool] = []
        for line in path.read_text(encoding="utf-8").splitlines() if path.suffix in (".h", ".cpp") else ():
            if re.match(r"#\s*if", line):
                depth.append(bool(_GUARD.match(line)))
            elif re.match(r"#\s*endif", line):
                depth.pop()
            assert any(depth) or not _X86.search(line), f"{path}: {line}"


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert "apt-get install g++-aarch64-linux-gnu qemu-user" in aarch64.lacking()

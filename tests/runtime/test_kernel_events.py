"""Kernels in traces of ``torch.profiler``: their names, their modules, and what PyTorch runs inside of them."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from daceopt import optimized_module
from daceopt.errors import RunError
from daceopt.runtime.kernel_events import kernel_events
from daceopt.runtime.manifest import KernelInfo, Manifest


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.norm = nn.Linear(32, 32), nn.LayerNorm(32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x + self.attention(x).softmax(-1))


def _profiled(call: Any) -> Any:
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        call()
    return seen


def _paths(model: Any) -> list[str]:
    pair = model.daceopt._pair()
    programs = [pair.forward] if pair.backward is None else [pair.forward, pair.backward]
    return [info.path for program in programs for info in program.manifest.kernels]


def test_each_kernel_is_an_event_under_its_module(tmp_path: Path) -> None:
    model = optimized_module(nn.Sequential(Block(), Block()), recipe="cpu", fallback="raise")
    x = torch.randn(4, 32)
    model(x).sum().backward()
    paths = _paths(model)
    seen = _profiled(lambda: model(x).sum().backward())
    events = [e.name for e in seen.events()]
    assert [e for e in events if e in paths] == paths  # each once, forward and backward, in the order of the program
    assert any(p.startswith("0/") and "softmax" in p for p in paths)
    assert all(any(p.startswith(f"{k}.attention/matmul_") for p in paths) for k in range(2))
    averages = {e.key: e.count for e in seen.key_averages()}
    assert all(averages[p] == paths.count(p) for p in paths)
    seen.export_chrome_trace(str(tmp_path / "trace.json"))
    trace = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    spans = sorted((e["ts"], e["ts"] + e["dur"], e["name"]) for e in trace if e.get("name") in paths)
    assert [name for _, _, name in spans] == paths
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(spans))  # one ends before the next begins


def test_what_pytorch_runs_stands_inside_of_the_event_of_its_call() -> None:
    class Spectrum(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.fft.rfft(x.tanh()).real.tanh()

    model = optimized_module(Spectrum(), recipe="cpu", fallback="raise")
    x = torch.randn(8, 16)
    with torch.no_grad():
        model(x)
        seen = _profiled(lambda: model(x))
    paths = _paths(model)
    inner = [e for e in seen.events() if e.name.startswith("aten::_fft")]
    assert inner and all(e.cpu_parent.name in paths for e in inner if not e.cpu_parent.name.startswith("aten::"))


def test_an_event_that_an_error_leaves_open_ends_there() -> None:
    manifest = Manifest("m", kernels=(KernelInfo("one", ("a",), "layer"), KernelInfo("two", ("b",))))

    def call() -> None:
        with pytest.raises(RunError), kernel_events(manifest) as mark:
            mark(0)
            mark(1)
            raise RunError("in the second")

    names = [e.name for e in _profiled(call).events()]
    assert names == ["layer/one", "two"]


def test_nothing_is_told_without_a_profiler(monkeypatch: pytest.MonkeyPatch) -> None:
    model = optimized_module(nn.Sequential(nn.Linear(4, 4), nn.Tanh()), recipe="cpu")
    with torch.no_grad():
        model(torch.ones(2, 4))
        monkeypatch.setattr("daceopt.runtime.invocation.kernel_events", None)
        model(torch.ones(2, 4))  # calling None would raise

"""What a compilation leaves for those who ask: the log's artifacts, and the files of a trace."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
import torch
from torch import nn

import daceopt
from daceopt.logs import ARTIFACTS


def run() -> None:
    torch.manual_seed(0)
    model = daceopt.optimized_module(nn.Sequential(nn.Linear(5, 7), nn.Tanh()), recipe="cpu", fallback="raise")
    model(torch.randn(3, 5)).sum().backward()


def test_each_artifact_says_something(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "daceopt"):
        run()
    said = {name: [r.getMessage() for r in caplog.records if r.name == f"daceopt.{name}"] for name in ARTIFACTS}
    assert all(said.values()), [name for name, lines in said.items() if not lines]
    assert any(line.startswith("imported a graph of Dynamo: 4 operators, 3 inputs") for line in said["importer"])
    assert any("epilogue-fusion" in line and ", program" in line for line in said["recipe"])
    assert any(line == "  site add + tanh" for line in said["recipe"])
    assert any("near miss" in line for line in said["recipe"])
    assert any("tanh" in line for line in said["build"]) and any("distinct" in line for line in said["build"])
    assert any(line.startswith("wrote pair") for line in said["cache"])


def test_a_trace_holds_graphs_code_and_times(
    tmp_path: Path, fresh_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DACEOPT_TRACE", str(tmp_path / "trace"))
    monkeypatch.setenv("DACEOPT_CACHE_DIR", str(fresh_cache))
    run()
    names = [p.name.split("-", 2)[2] for p in sorted((tmp_path / "trace").iterdir())]
    assert names[0] == "00-program.txt" and "03-constant-folding.txt" in names and "03-constant-folding.json" in names
    built = {p.name.split("-", 2)[2]: p.read_text() for p in (tmp_path / "trace").glob("*-built-*")}
    assert set(built) == {
        f"built-program{d}.{kind}" for d in ("", "_backward") for kind in ("cpp", "schedules.txt", "json")
    }
    assert 'extern "C"' in built["built-program.cpp"] and "for i0" in built["built-program.schedules.txt"]
    assert set(json.loads(built["built-program.json"])) == {"capture", "recipe", "differentiate", "build"}

"""A machine without a C++ compiler: programs of the cache run, also those of another machine's file; what is not there
is left to eager PyTorch before the first step, with one line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TRAIN = """
import warnings
import torch
from torch import nn
from daceopt import optimized_module
from daceopt.programs.derivation import Source

torch.manual_seed(0)
net = optimized_module(nn.Sequential(nn.Linear(6, 4), nn.Tanh()), recipe="cpu")
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for _ in range(2):
        loss = net(torch.ones(3, 6)).sum()
        loss.backward()
print("\\n".join(str(warning.message) for warning in caught))
print(f"{net.daceopt.stats.programs} programs, {net.daceopt.stats.eager_calls} eager, {loss.item():.5f}")
"""
NO_DERIVATION = "\ndef derive(self):\n    raise AssertionError('the recipe ran')\nSource.derive = derive\n"
RUN = """
import numpy as np
import daceopt
print(daceopt.load({folder!r})(np.ones((3, 6), np.float32)).sum())
"""
WRITE = """
import torch
from torch import nn
import daceopt
from daceopt import export
model = nn.Sequential(nn.Linear(6, 4), nn.Tanh()).eval()
torch.onnx.export(model, (torch.ones(3, 6),), {file!r}, dynamo=True, verbose=False)
export.write(daceopt.from_onnx({file!r}), {folder!r})
"""


def python(*arguments: str, cache: Path, compiler: bool) -> str:
    """What a process prints that has a compiler, or none."""
    hidden = {} if compiler else {"PATH": "", "CXX": ""}
    environment = {**os.environ, "DACEOPT_CACHE_DIR": str(cache), **hidden}
    done = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A cache that a machine with a compiler has filled, and what it said."""
    folder = tmp_path_factory.mktemp("cache")
    return folder, python("-c", TRAIN, cache=folder, compiler=True)


def test_programs_of_the_cache_run(filled: tuple[Path, str]) -> None:
    cache, with_one = filled
    without = python("-c", TRAIN, cache=cache, compiler=False)
    assert without == with_one and without.startswith("1 programs, 0 eager")


def test_programs_of_another_machines_file_run(filled: tuple[Path, str], tmp_path: Path) -> None:
    cache, _ = filled
    python("-m", "daceopt", "cache", "export", str(tmp_path / "cache.zip"), cache=cache, compiler=True)
    python("-m", "daceopt", "cache", "import", str(tmp_path / "cache.zip"), cache=tmp_path / "own", compiler=False)
    assert python("-c", TRAIN, cache=tmp_path / "own", compiler=False).startswith("1 programs, 0 eager")


def test_what_is_not_in_the_cache_is_eager_before_anything_is_derived(tmp_path: Path) -> None:
    *lines, last = python(
        "-c", TRAIN.replace("\ntorch.m", f"{NO_DERIVATION}\ntorch.m"), cache=tmp_path, compiler=False
    ).splitlines()
    (line,) = lines
    assert "a C++ compiler is needed" in line and "apt-get install g++" in line
    assert last.startswith("0 programs, 2 eager")


def test_standalone_folders_run(tmp_path: Path) -> None:
    file, folder = str(tmp_path / "model.onnx"), str(tmp_path / "standalone")
    python("-c", WRITE.format(file=file, folder=folder), cache=tmp_path / "cache", compiler=True)
    with_one, without = (
        python("-c", RUN.format(folder=folder), cache=tmp_path / "other", compiler=has) for has in (True, False)
    )
    assert without == with_one

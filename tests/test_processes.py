"""A user's process as a whole: what the warm path imports, and what is left behind on the disk."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HEAVY = {"dace", "onnx", "onnxscript", "onnxruntime", "transformers"}  # torch.export itself imports SymPy

TRAIN = """
import sys
import torch
from torch import nn
import daceopt

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(6, 5)

    def forward(self, x):
        return torch.tanh(self.up(x))

net = daceopt.optimized_module(Net(), recipe="cpu", fallback="raise")
net(torch.ones(3, 6)).sum().backward()
assert net.up.weight.grad is not None and net.daceopt.stats.calls == 1
print(*sys.modules)
"""


class User:
    """Runs scripts in an empty current folder with an empty home folder."""

    def __init__(self, folder: Path):
        self.home, self.here = folder / "home", folder / "here"
        self.script = folder / "train.py"
        self.script.write_text(TRAIN)
        self.home.mkdir()
        self.here.mkdir()

    def run(self) -> set[str]:
        """The modules that the script has imported at its end."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("DACEOPT", "XDG", "PYTEST"))}
        environment = {**kept, "HOME": str(self.home), "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, str(self.script)]
        done = subprocess.run(command, cwd=self.here, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return set(done.stdout.split())


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> User:
    """Has trained once, so that the second time everything comes from the cache."""
    user = User(tmp_path_factory.mktemp("user"))
    assert {"dace", "onnx"} <= user.run()
    return user


def test_the_warm_path_is_light(user: User) -> None:
    assert not HEAVY & user.run()


def test_nothing_is_written_but_the_cache(user: User) -> None:
    assert not list(user.here.iterdir())
    assert [p.name for p in user.home.iterdir()] == [".cache"]
    assert [p.name for p in (user.home / ".cache").iterdir()] == ["daceopt"]

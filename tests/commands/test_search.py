"""``python -m daceopt search`` from a file to a strategy, and what it makes of bad input."""

from __future__ import annotations

from pathlib import Path

import pytest

from daceopt.commands.main import main
from daceopt.distributed.search.strategy import Strategy

SOURCE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 2)
        self.unused = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return self.last(torch.tanh(self.norm(self.first(x)))).sigmoid()

def build():
    return Net(), (torch.randn(4, 6),)

def frozen():
    return Net().requires_grad_(False), (torch.randn(4, 6),)
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SOURCE)
    return path


def search(source: Path, *more: str, name: str = "build", measured: bool = False) -> int:
    output = str(source.parent / "strategy.json")
    common = ("--world", "4", "--bandwidth", "1Gbit", "--latency", "20us", "--patience", "60", "-o", output)
    return main(["search", f"{source}:{name}", *common, *([] if measured else ["--estimated"]), *more])


@pytest.mark.parametrize(("measured", "times"), [(False, "kernels as estimated"), (True, "kernels as measured alone")])
def test_it_says_what_was_timed(source: Path, capsys: pytest.CaptureFixture[str], measured: bool, times: str) -> None:
    assert search(source, measured=measured) == 0
    assert times in capsys.readouterr().out.splitlines()[0]


def test_a_strategy_is_written_and_said(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert search(source, "--timeline", str(source.parent / "step.html")) == 0
    said = capsys.readouterr().out
    assert all(word in said for word in ("no fusion", "both", "searched", "full overlap", "faster than"))
    found = Strategy.load(source.parent / "strategy.json")
    assert found.identity.world == 4
    names = sorted(n for b in found.buckets for n in b.parameters)
    assert names == sorted(
        ["first.weight", "first.bias", "norm.weight", "norm.bias", "last.weight", "last.bias", "unused"]
    )
    assert found.buckets[-1].parameters == ("unused",)
    page = (source.parent / "step.html").read_text()
    assert "communication" in page
    assert "http" not in page.replace("http://www.w3.org", "")


def test_the_same_seed_finds_the_same_and_a_file_goes_on(source: Path) -> None:
    strategies = []
    resume = ("--resume", str(source.parent / "search.json"))
    for more in ((), (), resume, resume):
        assert search(source, *more) == 0
        strategies.append(Strategy.load(source.parent / "strategy.json").digest())
    assert len(set(strategies)) == 1


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--world", "0"), "expected 1 or more"),
        (("--bandwidth", "fast"), "is not a bandwidth"),
        (("--bandwidth", "0Gbit"), "expected more than 0"),
        (("--latency", "5"), "is not a time"),
        (("--budget", "soon"), "is not a time"),
        (("--alpha", "0.5"), "expected alpha"),
        (("--alpha", "nan"), "expected alpha"),
        (("--threads", "0"), "one thread or more"),
        (("--slowdown", "0.5"), "no faster"),
        (("-o", "/nowhere/at/all.json"), "there is no folder"),
    ],
)
def test_bad_options_are_one_line(
    source: Path, more: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert search(source, *more) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not (source.parent / "strategy.json").exists()


def test_bad_models_are_one_line(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, said in (("frozen", "gradient"), ("absent", "defines no 'absent'"), ("Net", "on what is it called?")):
        assert search(source, name=name) == 2
        error = capsys.readouterr().err
        assert said in error
        assert error.count("\n") == 1
    damaged = source.parent / "search.json"
    damaged.write_text('{"format": 1, "known": {}}')
    assert search(source, "--resume", str(damaged)) == 2
    assert "no state of a search" in capsys.readouterr().err

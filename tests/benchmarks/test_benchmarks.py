"""The benchmark harness runs one tiny case end to end; what it measures is not judged here."""

from __future__ import annotations

import functools
import json
import math
from pathlib import Path

import pytest
import torch

from benchmarks import __main__ as command
from benchmarks import calls, harness, scaling, worker
from benchmarks.harness import Budget, Result
from benchmarks.suites import SUITES

MEASURES = "tiny-call kernels bert resnet compile-time compile-networks import-time linear-scaling shared-cache"
MEASURES += " cost-model recipe-time precision apollo-subgraphs budget-step"
MEASURES += " stem-pool blur-chain training-step training-compile updates recommender instances gpu-instances"
MEASURES += " sub-batches peak-memory training-peak memory-budget disco-search networks-inference networks-training"
MEASURES += " networks-inference-autocast networks-training-autocast networks-step networks-inference-int8"
MEASURES += " guided-operators guided-mbconv guided-bert daceml-networks cuda-kernels"
MEASURES += " cuda-inference cuda-training cuda-inference-autocast cuda-training-autocast cuda-step cuda-call"


def test_every_measure_has_a_case() -> None:
    assert set(harness.CASES) == set(MEASURES.split())
    assert {case for cases in SUITES.values() for case in cases} <= set(harness.CASES)


def test_a_case_from_the_command_line_to_the_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(calls, "_CALLS", 2)
    monkeypatch.setattr(Budget, "quick", classmethod(lambda cls: cls(seconds=0.01, repeats=1)))
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))  # its compiler is not ours
    command.main(["tiny-call", "--quick", "--output", str(tmp_path)])
    (file,) = tmp_path.glob("*.json")
    content = json.loads(file.read_text())
    assert [r["measure"] for r in content["results"]] == ["forward", "forward + backward"]
    for result in content["results"]:
        assert set(result["values"]) == {"eager", "torch.compile", "daceopt"}
        assert all(0 < v < math.inf for v in result["values"].values())
    assert "tiny-call" in capsys.readouterr().out
    assert content["machine"]["threads"] >= 1


def test_nothing_is_written_unless_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    result = Result("none", "forward", "ms", {"daceopt": 1.0})
    monkeypatch.setattr(harness, "CASES", {"none": lambda budget: iter([result])})
    monkeypatch.setattr(command, "CASES", harness.CASES)
    before = set(Path(harness.__file__).parent.rglob("*"))
    assert command.main(["none"]) == 0
    assert not list(tmp_path.iterdir()) and set(Path(harness.__file__).parent.rglob("*")) == before
    assert "written" not in capsys.readouterr().out
    assert command.main(["none", "--output", "results"]) == 0
    assert f"written: {Path('results')}" in capsys.readouterr().out and list(Path("results").glob("*.json"))
    (tmp_path / "file").write_text("")
    with pytest.raises(FileExistsError):
        command.main(["none", "--output", "file"])


def test_an_unknown_case_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        command.main(["fastest"])
    assert exit_.value.code == 2
    assert "no benchmark is called fastest; there are: kernels, networks, training" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        command.main(["calls", "--peers", "eager,slow"])
    assert "no contender is called slow; there are: eager" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("eager,torch.compile", ("eager", "torch.compile")),
        ("eager, channels last", ("eager, channels last",)),
        ("eager,eager, channels last,JAX", ("eager", "eager, channels last", "JAX")),
        ("slow, eager", ("slow", "eager")),
        ("", ()),
    ],
)
def test_peers_whose_names_have_commas(text: str, names: tuple[str, ...]) -> None:
    assert command.split_names(text, ["eager", "eager, channels last", "torch.compile", "JAX"]) == names


def test_ratios_and_goals() -> None:
    values = {"eager": 3.0, "torch.compile": 2.0, "daceopt": 1.0}
    assert Result("x", "forward", "ms", values).ratios() == {"eager": 3.0, "torch.compile": 2.0}
    assert harness.at_least(values, 2.0, "eager", "torch.compile")[1]
    assert not harness.at_least(values, 2.1, "eager", "torch.compile")[1]
    missed = harness.row(Result("x", "forward", "ms", values, "faster", False))
    assert "MISSED: faster" in missed and "torch.compile 2 (2.00x)" in missed


def test_growth_is_the_exponent() -> None:
    assert scaling.growth({n: 0.3 * n**1.5 for n in (4, 8, 16, 32)}) == pytest.approx(1.5)


def test_a_worker_compiles_in_a_process_of_its_own(tmp_path: Path) -> None:
    found = worker.finish(worker.start("daceopt", "novel", tmp_path))
    assert found["seconds"] > 0 and found["error"] < 1e-5
    assert any((tmp_path / "daceopt").rglob("*.so"))

"""The command line: help, exit codes, one readable line for an error."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from daceopt.cli import main


def test_unknown_command_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["frobnicate"])
    assert exit_.value.code == 2
    assert "doctor" in capsys.readouterr().err


def test_a_missing_model_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["optimize", str(tmp_path / "absent.onnx")]) == 2
    error = capsys.readouterr().err
    assert error.startswith("daceopt optimize: ") and error.count("\n") == 1 and "absent.onnx" in error


def test_a_file_that_cannot_be_loaded_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["optimize", "x.onnx", "--load", str(tmp_path / "absent.py")]) == 2
    assert "no such file" in capsys.readouterr().err


def test_unknown_recipe_and_step(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["optimize", "x.onnx", "--recipe", "fastest"]) == 2
    assert "no recipe is called 'fastest'; there are: auto, cpu, none" in capsys.readouterr().err
    assert main(["bisect", "x.onnx", "--add", "no-such-step"]) == 2
    assert "no transformation is called 'no-such-step'" in capsys.readouterr().err


def test_cache(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DACEOPT_CACHE_DIR", str(tmp_path / "cache"))
    assert main(["cache", "info"]) == 0
    assert str(tmp_path / "cache") in capsys.readouterr().out
    assert main(["cache", "clear"]) == 0
    assert "0 entries removed" in capsys.readouterr().out


def test_operators(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["operators"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("Softmax") and "native" in line for line in lines)


def test_importing_the_command_line_is_light() -> None:
    code = "import sys, daceopt.cli, daceopt.recipes; daceopt.recipes.get('cpu').fingerprint(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"dace", "onnx", "sympy", "torch"} & set(done.stdout.split())

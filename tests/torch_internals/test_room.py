"""A private name of PyTorch that is missing is one clear error; a release that is not tested is a warning."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from daceopt.commands import doctor
from daceopt.errors import DaceoptError, PyTorchChanged
from daceopt.torch_internals import release
from tests.test_import_layers import ROOT
from tests.torch_internals.names import ROOM


def test_a_missing_name_says_which_and_for_what_daceopt_is() -> None:
    with (
        pytest.raises(PyTorchChanged, match=r"no attribute '_gone'.*tested with PyTorch 2\.") as raised,
        release.private_names(),
    ):
        _ = torch._C._gone
    assert torch.__version__ in str(raised.value) and isinstance(raised.value, DaceoptError)
    with pytest.raises(PyTorchChanged, match="cannot import name 'gone' from 'torch._guards'"), release.private_names():
        from torch._guards import gone  # type: ignore[attr-defined]  # noqa: F401


def test_a_file_of_the_room_whose_name_is_gone(tmp_path: Path) -> None:
    """Whoever imports it is told, before anything is traced."""
    text = (ROOM / "pytree.py").read_text(encoding="utf-8").replace("keystr", "gone_from_pytree")
    with pytest.raises(PyTorchChanged, match="gone_from_pytree"):
        exec(compile(text, "pytree.py", "exec"), {"__name__": "pytree"})


def test_the_tested_releases_are_those_that_are_required() -> None:
    (pinned,) = re.findall(r"^torch==([\d.]+)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    assert pinned == doctor._TESTED["torch"][0] and set(doctor._TESTED["torch"]) == set(release.TESTED)
    (range_,) = re.findall(r'"torch>=([\d.]+),<([\d.]+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    oldest, newest = release.number_of(release.TESTED[0]), release.number_of(release.TESTED[-1])
    assert tuple(map(release.number_of, range_)) == (oldest, (newest[0], newest[1] + 1))


def test_a_release_of_the_range_is_used_without_a_word() -> None:
    for version in (*release.TESTED, "2.13.0+cpu", "2.15.1a0+git"):
        release.warn_beyond_tested(version)


@pytest.mark.parametrize("version", ["2.10.0", "2.16.0a0+git1234", "3.0.0"])
def test_a_release_beyond_the_range_is_named(version: str) -> None:
    with pytest.warns(UserWarning, match=f"PyTorch {re.escape(version)} is not among the releases"):
        release.warn_beyond_tested(version)


def test_a_release_beyond_the_range_warns_once_and_works() -> None:
    """In a process whose PyTorch says that it is newer."""
    example = ROOT / "examples" / "first_call.py"
    code = f"import runpy, torch; torch.__version__ = '2.99.0'; runpy.run_path({str(example)!r})"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stderr.count("UserWarning") == 1 and "PyTorch 2.99.0 is not among the releases" in run.stderr


def test_a_name_that_some_releases_lack() -> None:
    assert release.name_if_known("torch._guards.Guard").__name__ == "Guard"
    assert release.name_if_known("torch._guards.Guard.gone") is None
    assert release.name_if_known("torch._gone.name") is None and release.name_if_known("gone.name") is None

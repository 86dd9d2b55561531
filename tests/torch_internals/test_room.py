"""A private name of PyTorch that is missing is one clear error, and the release that is tested is the one installed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

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


def test_the_tested_release_is_the_one_that_is_required() -> None:
    for file in ("pyproject.toml", "constraints.txt"):
        (version,) = re.findall(r"\btorch==([\d.]+)", (ROOT / file).read_text(encoding="utf-8"))
        assert version in release.TESTED

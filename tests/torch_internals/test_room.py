"""No other room names what PyTorch keeps private, and a name that is missing is one clear error."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from daceopt.errors import DaceoptError, PyTorchChanged
from daceopt.torch_internals import release
from tests.test_import_layers import HOUSE, ROOT, tree_of
from tests.torch_internals.names import ROOM, is_private, names_of


def test_no_other_room_names_what_is_private() -> None:
    files = [path for folder in HOUSE.values() for path in folder.rglob("*.py") if path.parent != ROOM]
    wrong = {(f"{path.relative_to(ROOT)}:{line}", name) for path in files for name, line in names_of(tree_of(path))}
    named = sorted(f"{place}: {name}" for place, name in wrong if is_private(name))
    assert not named, "daceopt/torch_internals is the place for these:\n" + "\n".join(named)


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

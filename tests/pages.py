"""Pages whose examples the tests run, as their reader would."""

from __future__ import annotations

import importlib.util
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from daceopt.commands.main import main
from tests.registered import restored

ROOT = Path(__file__).resolve().parents[1]
SLOW_COMMANDS = {"demo", "bench", "explore"}  # the last one does not end by itself


def pages(*folders: str) -> list[str]:
    """The documents directly in these folders."""
    return [path.relative_to(ROOT).as_posix() for name in folders for path in sorted((ROOT / name).glob("*.md"))]


def text_of(document: str) -> str:
    return (ROOT / document).read_text(encoding="utf-8")


def blocks(document: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text_of(document), re.DOTALL | re.MULTILINE)


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_in_eager: None) -> Iterator[Path]:
    """An empty current folder from which modules are imported; what the blocks register does not outlive the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    with restored():
        yield tmp_path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def run_block(code: str, number: int, folder: Path) -> None:
    """A block that begins with ``# name.py`` becomes that file, as its reader would make it."""
    title = re.match(r"# (\w+)\.py\n", code)
    name = title[1] if title else f"block_{number}"
    path = folder / f"{name}.py"
    path.write_text(code, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


def commands(document: str) -> list[list[str]]:
    lines = [line for block in blocks(document, "bash") for line in block.splitlines()]
    found = [shlex.split(line)[3:] for line in lines if line.startswith("python -m daceopt ")]
    return [c for c in found if c[0] not in SLOW_COMMANDS]


def run_page(document: str, folder: Path) -> None:
    """All blocks of Python in their order, then the commands of daceopt."""
    for number, code in enumerate(blocks(document, "python")):
        run_block(code, number, folder)
    for command in commands(document):
        assert main(command) == 0, command


def missing_files(document: str) -> list[str]:
    """What the document links or names in the tree and is not there."""
    text, folder = text_of(document), (ROOT / document).parent
    links = re.findall(r"\]\((?!https?:)([^)#]+)", text)
    code = re.findall(r"`((?:daceopt|transformations|recipes|tests|docs|benchmarks)/[\w./-]*)`", text)
    missing = [name for name in links if not (folder / name).exists()]
    return missing + [name for name in code if not (ROOT / name).exists()]

"""Pages with examples: their Python blocks run, in order, and so do their commands; what they name exists."""

from __future__ import annotations

import importlib.util
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import dace
import numpy as np
import pytest
import torch

from daceopt import ops
from daceopt.autodiff import differentiate
from daceopt.commands.main import main
from daceopt.ir.graph.graph import Graph
from daceopt.ir.interpreter.interpret import interpret
from daceopt.logs import ARTIFACTS
from tests.modules.devices import on_device
from tests.registered import restored

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("docs", "docs/how-to", "docs/extending", "docs/reference")
PAGES = (path.relative_to(ROOT).as_posix() for folder in FOLDERS for path in sorted((ROOT / folder).glob("*.md")))
DOCUMENTS = ("README.md", "CONTRIBUTING.md", *PAGES)
SLOW_COMMANDS = {"demo", "bench"}


def blocks(document: str, language: str) -> list[str]:
    text = (ROOT / document).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


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


@pytest.mark.filterwarnings("default")  # PyTorch's exporter warns about itself
@pytest.mark.parametrize("document", DOCUMENTS)
def test_what_the_document_shows_runs(document: str, workplace: Path) -> None:
    for number, code in enumerate(blocks(document, "python")):
        run_block(code, number, workplace)
    for command in commands(document):
        assert main(command) == 0, command


@on_device
@pytest.mark.filterwarnings("default")
def test_the_readme_runs_on_a_device(workplace: Path) -> None:
    """Its modules, inputs and optimizers there; arrays of NumPy are the host's."""
    torch.set_default_device("cuda")
    try:
        for number, code in enumerate(blocks("README.md", "python")):
            run_block(code.replace(".numpy()", ".cpu().numpy()"), number, workplace)
    finally:
        torch.set_default_device(None)


def test_the_operator_that_is_shown_and_its_gradient_rule_are_right(workplace: Path) -> None:
    shown = (code for document in DOCUMENTS for code in blocks(document, "python") if "CentredMean" in code)
    for number, code in enumerate(shown):
        run_block(code, number, workplace)
    graph = Graph("centred_mean")
    x = graph.add_input("x", (3, 4), dace.float64)
    graph.add_operator("CentredMean", [x], [y := graph.add_array("y", (3, 4), dace.float64)], domain="my.ops")
    graph.add_output(y)
    node = graph.operators()[0]
    assert ops.has_gradient(node)
    derivative = differentiate(graph, [y], [x])
    (given,), (found,) = derivative.grad_outputs.values(), derivative.grad_inputs.values()
    assert found is not None
    backward = derivative.backward
    backward.outputs[:] = [found]
    ops.lower_all(backward)
    dy = np.arange(12.0).reshape(3, 4) ** 2
    np.testing.assert_allclose(interpret(backward, {given: dy})[found], dy - dy.mean(-1, keepdims=True), atol=1e-12)


def test_the_readme_is_short() -> None:
    text = re.sub(r"^```.*?^```$", "", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    assert len(text.split()) <= 800


@pytest.mark.parametrize("document", DOCUMENTS)
def test_files_that_the_document_names_exist(document: str) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    links = re.findall(r"\]\((?!https?:)([^)#]+)", text)
    code = re.findall(r"`((?:daceopt|transformations|recipes|tests|docs|benchmarks)/[\w./-]*)`", text)
    folder = (ROOT / document).parent
    missing = [name for name in links if not (folder / name).exists()]
    missing += [name for name in code if not (ROOT / name).exists()]
    assert not missing


def test_the_table_of_environment_variables_is_complete() -> None:
    page = "".join((ROOT / document).read_text(encoding="utf-8") for document in DOCUMENTS)
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "daceopt").rglob("*.py")]
    read = {name for text in sources for name in re.findall(r"\"(DACEOPT_[A-Z_]+)\"", text)}
    assert read == set(re.findall(r"^\| `(DACEOPT_[A-Z_]+)`", page, re.MULTILINE))
    assert all(f"`{artifact}`" in page for artifact in ARTIFACTS)

"""Pages with examples: their Python blocks run, in order, and so do their commands; what they name exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from daceopt.logs import ARTIFACTS
from tests.modules.devices import on_device
from tests.pages import ROOT, blocks, missing_files, pages, run_block, run_page, text_of, workplace

__all__ = ["workplace"]
DOCUMENTS = ("README.md", "CONTRIBUTING.md", *pages("docs", "docs/how-to", "docs/reference"))


@pytest.mark.filterwarnings("default")  # PyTorch's exporter warns about itself
@pytest.mark.parametrize("document", DOCUMENTS)
def test_what_the_document_shows_runs(document: str, workplace: Path) -> None:
    run_page(document, workplace)


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


def test_the_readme_is_short() -> None:
    text = re.sub(r"^```.*?^```$", "", text_of("README.md"), flags=re.DOTALL | re.MULTILINE)
    assert len(text.split()) <= 800


@pytest.mark.parametrize("document", DOCUMENTS)
def test_files_that_the_document_names_exist(document: str) -> None:
    assert not missing_files(document)


def test_the_table_of_environment_variables_is_complete() -> None:
    text = "".join(map(text_of, DOCUMENTS))
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "daceopt").rglob("*.py")]
    read = {name for source in sources for name in re.findall(r"\"(DACEOPT_[A-Z_]+)\"", source)}
    assert read == set(re.findall(r"^\| `(DACEOPT_[A-Z_]+)`", text, re.MULTILINE))
    assert all(f"`{artifact}`" in text for artifact in ARTIFACTS)

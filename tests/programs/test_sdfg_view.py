"""DaCe's viewer as one page."""

from __future__ import annotations

import copy
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import dace
import pytest

import daceopt
from daceopt.errors import DaceoptError
from daceopt.ir.graph.graph import Graph
from daceopt.ir.nodes.builder import Builder
from daceopt.programs.plain import plain


def doubled() -> dace.SDFG:
    graph = Graph("doubled")
    x = graph.add_input("x", (4,), dace.float32)
    graph.add_output(Builder(graph, "</script><b>").elementwise(lambda v: 2 * v, x))
    return plain(graph).sdfg


def page(folder: Path) -> Path:
    return daceopt.view(doubled()).save(folder / "page.html")


def test_the_page_loads_nothing(tmp_path: Path) -> None:
    text = page(tmp_path).read_text()
    assert "<script src=" not in text and "fonts.googleapis" not in text
    assert text.count("</script>") == 3, "what a graph says ends no script"


def test_notebooks_show_it_in_a_frame() -> None:
    shown = daceopt.view(dace.SDFG("empty"))._repr_html_()
    assert shown.startswith("<iframe") and 'srcdoc="&lt;!DOCTYPE' in shown


def test_view_of_an_sdfg_shows_it_in_a_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``sdfg.view()``, also of copies; files and other places are DaCe's, and what is saved knows nothing of it."""
    shown: list[Any] = []
    monkeypatch.setattr("dace.jupyter.isnotebook", lambda: True)
    monkeypatch.setattr("IPython.display.display", shown.append)
    sdfg = doubled()
    copied = copy.deepcopy(sdfg)
    copied.name = "copied"
    for found in (sdfg, copied):
        found.view()
    assert [view._sdfg.name for view in shown] == [sdfg.name, "copied"]

    called: list[Any] = []
    monkeypatch.setattr(dace.SDFG, "view", lambda *arguments: called.append(arguments))
    sdfg.view("file")
    monkeypatch.setattr("dace.jupyter.isnotebook", lambda: False)
    sdfg.view()
    assert called == [(sdfg, "file", False), (sdfg, None, False)] and len(shown) == 2

    sdfg.save(str(tmp_path / "doubled.sdfg"))
    assert type(dace.SDFG.from_file(str(tmp_path / "doubled.sdfg"))) is dace.SDFG


def test_what_has_no_graph_is_refused() -> None:
    with pytest.raises(DaceoptError, match="view takes an SDFG"):
        daceopt.view(3)


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs Chromium")
def test_it_draws_without_a_network(tmp_path: Path) -> None:
    file = page(tmp_path)
    command = ["chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--dump-dom"]
    command += ["--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={tmp_path / 'profile'}", file.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    errors = [line for line in done.stderr.splitlines() if "CONSOLE" in line and re.search(r"Uncaught|ERR_", line)]
    assert not errors and "<canvas" in done.stdout, errors
